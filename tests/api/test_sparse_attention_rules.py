"""What a config.json says of indexers, and where stages may begin."""

from typing import Any

import pytest

from api.model_configs import LATENT, SHARED, SPARSE, M, P, check, require_broken
from api.specs import make_spec
from rljob_api.rules.model import model_violations
from rljob_api.spec import RLJobSpec

LATE = SPARSE | SHARED | {"index_skip_topk_offset": 0}
"""The first layer would take what no layer has chosen."""
RULES = [
    ({k: v for k, v in SPARSE.items() if k != "indexer_rope_interleave"}, {}, M, "its config.json has no indexer_rope_interleave"),
    (SPARSE | {"indexer_rope_interleave": False}, {}, M, "its indexer_rope_interleave = False is not supported"),
    (SPARSE | {"indexer_types": ["full", "shared"] * 6}, {}, M, "its indexer_types are not what index_topk_freq, index_skip_topk_offset and"),
    (SPARSE | {"indexer_types": ["full"] * 2}, {}, M, "its config.json has indexer_types = \"2 layers\", which must name num_hidden_layers = 12"),
    (SPARSE | {"indexer_types": ["full", "none"] * 6}, {}, M, "its config.json has indexer_types = "),
    (SPARSE | {"index_topk_pattern": "SF" * 6}, {}, M, "its config.json has index_topk_pattern = \"SFSFSFSFSFSF\", which must give"),
    (SPARSE | {"index_topk_pattern": 4}, {}, M, "its config.json has index_topk_pattern = 4, which must name F or S for each layer"),
    (SPARSE | {"index_topk_freq": 0}, {}, M, "its config.json has index_topk_freq = 0, which must be a whole number from 1"),
    (LATE, {}, M, "its config.json has index_skip_topk_offset = 0, which must be from 1 with index_topk_freq = 4: the layers before it have"),
    (LATE, {"pipeline": 2}, M, "its config.json has index_skip_topk_offset = 0, which must be from 1"),
    (SPARSE | SHARED, {"pipeline": 3}, f"{P}.pipeline", "a piece of a stage would begin with layer 4, which takes the tokens that"),
    (SPARSE | SHARED, {"pipeline": 2, "virtualPipeline": 2}, f"{P}.pipeline", "a piece of a stage would begin with layer 3, which takes"),
    (SPARSE | {"mlp_layer_types": ["sparse"] * 6}, {}, M, "its mlp_layer_types = ['sparse', 'sparse'"),
    (SPARSE | {"index_topk": 0}, {}, M, "its config.json has index_topk = 0, which must be a whole number from 1"),
]  # fmt: skip


@pytest.mark.parametrize(("config", "sizes", "field", "rule"), RULES)
def test_a_broken_rule_is_found_at_its_field(
    config: dict[str, Any], sizes: dict[str, Any], field: str, rule: str
) -> None:
    require_broken(config, sizes, field, rule)


@pytest.mark.parametrize("kinds", [SHARED, {"index_topk_pattern": "FFFSSSFSSSFS"}])
def test_pieces_of_stages_begin_with_layers_that_choose_tokens(kinds: dict[str, Any]) -> None:
    cut = {"transformerConfig": {"pipeline_model_parallel_layout": "Etttttt|tttt|ttL"}}
    found = [*check(SPARSE | kinds, cut, pipeline=3), *check(SPARSE | kinds, pipeline=2)]
    assert [rule for _, rule in found if "vLLM generates" not in rule] == []


def test_keys_that_an_indexer_would_ignore_are_refused() -> None:
    keys = {"dsa_indexer_loss_coeff": 0.1, "dsa_kernel_backend": "cudnn"}
    found = check(SPARSE, {"transformerConfig": keys})
    rule = "config.json says how the indexer chooses, and it is frozen"
    fields = [(f"spec.trainer.transformerConfig.{key}", rule) for key in keys]
    assert [each for each in found if "vLLM generates" not in each[1]] == fields
    assert check(LATENT, {"transformerConfig": keys}) == []


@pytest.mark.parametrize("pipeline", [1, 3])
@pytest.mark.parametrize("kinds", [None, ["full"] * 12, ["shared"] * 12, ["full", "shared"] * 6])
@pytest.mark.parametrize("pattern", [None, "F" * 12, "S" * 12, "FS" * 6])
@pytest.mark.parametrize("offset", [None, 0, 1, 12])
@pytest.mark.parametrize("every", [None, 1, 3, 40])
def test_a_stage_is_to_begin_elsewhere_only_where_its_first_layer_may(
    every: int | None, offset: int | None, pattern: str | None, kinds: list[str] | None, pipeline: int
) -> None:
    """Whichever keys say it: where the first layer of all has no indexer, no layout helps, and the message is about the model's file."""
    keys = {"index_topk_freq": every, "index_skip_topk_offset": offset, "index_topk_pattern": pattern}
    given = {key: value for key, value in (keys | {"indexer_types": kinds}).items() if value is not None}
    broken = model_violations(pipelined(pipeline), SPARSE | given)
    about = {v.field for v in broken if "vLLM generates" not in v.rule}
    first = [*([kinds[0] == "full"] if kinds else []), begins(every, offset, pattern)]
    assert all(first) or about == {M}
    assert about <= {M, f"{P}.pipeline"}


def begins(every: int | None, offset: int | None, pattern: str | None) -> bool:
    """Whether the first layer has an indexer, by vLLM's keys."""
    if pattern:
        return pattern[0] == "F"
    return (every or 1) == 1 or offset != 0


def pipelined(stages: int) -> RLJobSpec:
    return make_spec(trainer={"device": "cpu", "nodes": 24, "parallelism": {"pipeline": stages}})
