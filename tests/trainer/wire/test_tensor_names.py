"""Sets of tensors' names in few words."""

import json
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from rljob_trainer.wire.weights.tensor_names import TensorNames

PIECES = st.sampled_from(["layer", ".", "{}", "-", "0", "1", "2", "10", "007", "w"])
NAME = st.lists(PIECES, max_size=6).map("".join)


def sent(names: TensorNames) -> TensorNames:
    return TensorNames.from_json(json.loads(json.dumps(names.as_json())))


@given(st.sets(NAME, max_size=30), st.sets(NAME, max_size=30))
def test_a_set_has_the_names_that_it_was_made_from_and_no_others(own: set[str], others: set[str]) -> None:
    names = sent(TensorNames.of(own))
    assert {name for name in own | others if name in names} == own


@given(st.lists(NAME, max_size=30))
def test_sets_of_the_same_names_are_equal_wherever_they_come_from(own: list[str]) -> None:
    assert TensorNames.of(own) == sent(TensorNames.of(reversed(own))) and hash(TensorNames.of(own)) == hash(
        sent(TensorNames.of(own))
    )


def test_what_a_worker_of_a_large_mixture_does_not_need_takes_a_few_lines() -> None:
    """That of DeepSeek-V3, whose 256 experts are on 16 workers: 42,000 names."""
    matrices = ("gate_proj", "up_proj", "down_proj")
    others = [e for e in range(256) if not 32 <= e < 48]
    needless = [
        f"model.layers.{layer}.mlp.experts.{e}.{matrix}.weight"
        for layer, e, matrix in product(range(3, 61), others, matrices)
    ]
    names = TensorNames.of(needless)
    assert names.as_json() == [
        [f"model.layers.{{}}.mlp.experts.{{}}.{matrix}.weight", [[[3, 60]], [[0, 31], [48, 255]]]]
        for matrix in sorted(matrices)
    ]
    assert all(name in names for name in needless) and "model.layers.3.mlp.experts.32.up_proj.weight" not in names
