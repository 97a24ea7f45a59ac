"""Options of Megatron that are no keys of transformerConfig name the field that sets them."""

import pytest

from api.specs import raw_spec
from rljob_api.rules.key_tables import TRANSFORMER_CONFIG
from rljob_api.rules.validator import validate


@pytest.mark.parametrize(
    ("key", "owner"),
    [
        ("overlap_grad_reduce", "spec.trainer.overlap.gradReduce"),
        ("overlap_param_gather", "spec.trainer.overlap.paramGather"),
        ("average_in_collective", "spec.algorithm.aggregation"),
        ("lr", "spec.train.optimizer.learningRate"),
        ("clip_grad", "spec.train.optimizer.clipGrad"),
        ("bucket_size", "the trainer: of the options of Megatron's DDP, spec.trainer.overlap has all there are"),
        ("sgd_momentum", "the trainer: of the options of Megatron's optimizer, spec.train.optimizer has all there are"),
    ],
)
def test_an_option_of_ddp_or_the_optimizer_is_answered_with_what_sets_it(key: str, owner: str) -> None:
    assert key not in TRANSFORMER_CONFIG
    (violation,) = validate(raw_spec(trainer={"device": "cpu", "transformerConfig": {key: 1}}), "demo").violations
    assert violation.field == f"spec.trainer.transformerConfig.{key}"
    assert violation.rule == f"this key is set by {owner}"


def test_a_word_that_is_no_option_at_all_gets_the_nearest_key() -> None:
    (violation,) = validate(raw_spec(trainer={"device": "cpu", "transformerConfig": {"fp9": 1}}), "demo").violations
    assert violation.rule == "there is no such key in the pinned version"
