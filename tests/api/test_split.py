"""Layers over pipeline stages, in every way that megatron-core has (tests/trainer/megatron/test_split.py compares with it)."""

from typing import Any

import pytest

from api.specs import make_spec
from rljob_api.sizing.layout import Layout
from rljob_api.sizing.shape import Shape
from rljob_api.sizing.split import EMBEDDING, FIRST, LAST, LOSS, WRITTEN, Unsplit, even_split, split
from rljob_api.sizing.stage import fullest, operations, own_parameters, shares

QWEN_235B = Shape(94, 4096, 64, 4, 128, 0, 151936, experts=128, experts_per_token=8, expert_feed_forward=1536)
GLM_AIR = Shape(
    46, 4096, 96, 8, 128, 10944, 151552, experts=128, experts_per_token=8, expert_feed_forward=1408, dense_layers=1
)


@pytest.mark.parametrize(
    ("layers", "pipeline", "virtual", "given", "stages"),
    [
        (96, 8, 1, {}, [12] * 8),
        (94, 8, 1, {EMBEDDING: True, LOSS: True}, [11, *[12] * 6, 11]),
        (61, 8, 1, {FIRST: 7, LAST: 6}, [7, *[8] * 6, 6]),
        (61, 4, 1, {LAST: 13}, [16, 16, 16, 13]),
        (10, 2, 1, {FIRST: 7}, [7, 3]),
        (10, 2, 2, {FIRST: 6, LAST: 4}, [6, 4]),
        (7, 2, 1, {LOSS: True}, [4, 3]),
        (63, 16, 2, {WRITTEN: "Et*3|(tt|)*30,L"}, [5, *[4] * 14, 2]),
        (4, 2, 1, {WRITTEN: [["embedding", "Decoder"], ["decoder", "decoder", "decoder", "loss"]]}, [1, 3]),
    ],
)
def test_layers_are_cut_as_said(
    layers: int, pipeline: int, virtual: int, given: dict[str, Any], stages: list[int]
) -> None:
    assert split(layers, pipeline, virtual, given).stages == stages


@pytest.mark.parametrize(
    ("layers", "pipeline", "virtual", "given", "where", "says"),
    [
        (94, 8, 1, {}, "pipeline", f"set {EMBEDDING}: true, {LOSS}: true in transformerConfig"),
        (61, 8, 1, {}, "pipeline", f"set {FIRST}: 7, {LAST}: 6 in transformerConfig"),
        (3, 4, 1, {}, "pipeline", "choose a divisor of 3"),
        (94, 8, 1, {LOSS: True}, LOSS, "are 95, not divisible by pipeline = 8"),
        (10, 3, 1, {FIRST: 3}, FIRST, "leaves 7 of 10 layers for 2 other stages"),
        (10, 2, 1, {FIRST: 3, LAST: 3}, FIRST, "leaves 4 of 10 layers for 0 other stages"),
        (10, 3, 1, {FIRST: 12}, FIRST, "leaves -2 of 10"),
        (10, 2, 1, {FIRST: 0}, FIRST, "must be a whole number from 1"),
        (10, 2, 1, {LAST: True}, LAST, "must be a whole number from 1"),
        (10, 2, 1, {LAST: "3"}, LAST, "must be a whole number from 1"),
        (12, 2, 4, {}, "virtualPipeline", "num_hidden_layers / pipeline = 6 layers of a stage are not divisible by it"),
        (12, 2, 2, {FIRST: 7}, "virtualPipeline", "5 layers of a stage are not divisible by it"),
        (2, 4, 1, {EMBEDDING: True, LOSS: True}, EMBEDDING, "leaves a stage without layers"),
        (4, 2, 1, {WRITTEN: "Ettt|tL|"}, WRITTEN, "has 3 pieces"),
        (4, 2, 1, {WRITTEN: "Ett|tL"}, WRITTEN, "has 3 layers (t), and the model 4"),
        (4, 2, 1, {WRITTEN: "Ettt|tLL"}, WRITTEN, "write each layer once, E and L once"),
        (4, 2, 1, {WRITTEN: "ttE|ttL"}, WRITTEN, "begin with E, end with L"),
        (4, 2, 1, {WRITTEN: "Ettt|tmL"}, WRITTEN, "has 'm'"),
        (4, 2, 1, {WRITTEN: 3}, WRITTEN, "must be a text, or a list of lists"),
        (4, 2, 1, {WRITTEN: [["embedding"], "loss"]}, WRITTEN, "must be a text, or a list of lists"),
        (4, 2, 1, {WRITTEN: "(t*999|)*999,L"}, WRITTEN, "has more than 4096 characters when it is written out"),
        (4, 2, 1, {WRITTEN: f"Et*{'0' * 4000}9999|L"}, WRITTEN, "has more than 4096 characters when it is written out"),
        (4, 2, 1, {WRITTEN: "Etttt|L"}, WRITTEN, "leaves a stage without layers"),
        (4, 5000, 1, {}, "pipeline", "pipeline x virtualPipeline is more than 4096"),
    ],
)  # fmt: skip
def test_what_cannot_be_cut_is_named_with_what_can(
    layers: int, pipeline: int, virtual: int, given: dict[str, Any], where: str, says: str
) -> None:
    with pytest.raises(Unsplit) as error:
        split(layers, pipeline, virtual, given)
    assert error.value.where == where
    assert says in f"{error.value.rule}; {error.value.fix}"


@pytest.mark.parametrize("virtual", [1, 2, 3, 4])
def test_what_is_proposed_holds_and_makes_the_largest_stage_as_small_as_it_can_be(virtual: int) -> None:
    for layers, pipeline in ((layers, pipeline) for layers in range(1, 100) for pipeline in range(2, 40)):
        keys = even_split(layers, pipeline, virtual)
        assert (keys is None) == (layers < pipeline * virtual)
        if keys is None:
            continue
        stages = split(layers, pipeline, virtual, keys).stages
        assert sum(stages) == layers and max(stages) == -(-layers // pipeline), (layers, pipeline, keys)
        assert max(stages[0], stages[-1]) <= max(stages[1:-1], default=layers)


@pytest.mark.parametrize(
    ("layers", "pipeline", "virtual", "written"),
    [(40, 16, 1, "Ett|(tt|)*3(ttt|)*8(tt|)*3ttL"), (61, 32, 1, "Et|(tt|)*29t|tL"), (13, 2, 3, "Ettt|(tt|)*4ttL")],
)
def test_the_fix_is_written_out_where_the_ends_would_be_larger_or_pieces_would_not_divide(
    layers: int, pipeline: int, virtual: int, written: str
) -> None:
    with pytest.raises(Unsplit) as error:
        split(layers, pipeline, virtual, {})
    assert f', or set {WRITTEN}: "{written}" in transformerConfig' in error.value.fix
    assert max(split(layers, pipeline, virtual, {WRITTEN: written}).stages) == -(-layers // pipeline)


def test_the_first_layers_of_a_model_lie_on_the_first_pieces() -> None:
    assert split(8, 2, 2, {}).leading(5) == [3, 2], "layers 0, 1 and 4 of 0, 1, 4, 5; 2 and 3 of 2, 3, 6, 7"


def cut(pipeline: int, **given: Any) -> Any:
    parallelism = {"pipeline": pipeline, "expert": 8}
    trainer = {"device": "gpu", "nodes": pipeline, "processesPerNode": 8, "parallelism": parallelism}
    return make_spec(trainer=trainer | {"transformerConfig": given}, model={"path": "/data/model", "dtype": "bfloat16"})


def test_all_stages_together_hold_the_model_once() -> None:
    for shape, given in ((QWEN_235B, {EMBEDDING: True, LOSS: True}), (GLM_AIR, {FIRST: 5, LAST: 5})):
        spec = cut(8, **given)
        whole = Layout(8, pipeline=8)
        found = sum(sum(own_parameters(shape, whole, share)) for share in shares(spec, shape))
        assert found == pytest.approx(shape.parameters, rel=1e-9)


def test_the_fullest_stages_are_the_first_of_each_kind_and_the_last() -> None:
    uneven = cut(8, **{EMBEDDING: True, LOSS: True})
    assert [(s.stage, s.layers) for s in fullest(uneven, QWEN_235B)] == [(0, 11), (1, 12), (7, 11)]
    dense_first = cut(2)
    assert [(s.stage, s.mixed, s.plain) for s in fullest(dense_first, GLM_AIR)] == [(0, 22, 1), (1, 23, 0)]


def test_a_layer_less_on_the_last_stage_makes_up_for_the_output_layer() -> None:
    """Qwen2.5-1.5B, whose output layer costs about as much as five layers (docs/evidence/gpus.md)."""
    shape = Shape(28, 1536, 12, 2, 128, 8960, 151936, tied=True)
    even, uneven = (operations(cut(2, **given), shape) for given in ({}, {FIRST: 16}))
    assert even[1] / even[0] > 1.3 and uneven[1] / uneven[0] == pytest.approx(1, abs=0.1)
