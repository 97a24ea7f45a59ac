"""Our stages are those that megatron-core builds, and what we refuse it refuses, or it would leave a stage without layers."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from megatron.core.transformer.enums import LayerType
from megatron.core.transformer.transformer_block import get_num_layers_to_build
from megatron.core.transformer.transformer_config import TransformerConfig

from rljob_api.sizing.split import EMBEDDING, FIRST, LAST, LOSS, WRITTEN, Unsplit, even_split, split

COUNTS = st.integers(0, 9)
PIECES = st.lists(st.sampled_from(("t", "tt", "ttt", "t*2", "", "(t)*3", "t,t")), min_size=1, max_size=8)
KEYS = st.one_of(
    st.just({}),
    st.fixed_dictionaries({}, optional={FIRST: COUNTS, LAST: COUNTS}),
    st.fixed_dictionaries({}, optional={EMBEDDING: st.booleans(), LOSS: st.booleans()}),
    PIECES.map(lambda pieces: {WRITTEN: f"E{'|'.join(pieces)}L"}),
)


@settings(max_examples=400)
@given(layers=st.integers(1, 24), pipeline=st.integers(2, 4), virtual=st.integers(1, 3), keys=KEYS)
def test_stages_are_those_of_megatron_core(layers: int, pipeline: int, virtual: int, keys: dict[str, Any]) -> None:
    try:
        found = [list(stage) for stage in split(layers, pipeline, virtual, keys).pieces]
    except Unsplit:
        found = None
    assert found == built(layers, pipeline, virtual, keys)


@pytest.mark.parametrize(
    "keys", [{WRITTEN: "Et*3|(tt|)*2,tL"}, {WRITTEN: [["embedding", "decoder"], ["decoder", "loss"]]}]
)
def test_a_written_layout_means_the_same_to_both(keys: dict[str, Any]) -> None:
    layers, pipeline = (8, 4) if isinstance(keys[WRITTEN], str) else (2, 2)
    found = [list(stage) for stage in split(layers, pipeline, 1, keys).pieces]
    assert found == built(layers, pipeline, 1, keys)


@pytest.mark.parametrize(("layers", "pipeline", "virtual"), [(40, 16, 1), (61, 32, 1), (61, 8, 2), (13, 2, 3)])
def test_the_layout_that_is_proposed_is_the_same_to_megatron_core(layers: int, pipeline: int, virtual: int) -> None:
    keys = even_split(layers, pipeline, virtual)
    assert keys and [*keys] == [WRITTEN]
    found = [list(stage) for stage in split(layers, pipeline, virtual, keys).pieces]
    assert found == built(layers, pipeline, virtual, keys)


def built(layers: int, pipeline: int, virtual: int, keys: dict[str, Any]) -> list[list[int]] | None:
    """Layers of every piece that megatron-core would build, by stage; None: it refuses, or a stage would have none, or less than none."""
    pieces = virtual if virtual > 1 else None
    try:
        config = TransformerConfig(
            num_layers=layers,
            hidden_size=8,
            num_attention_heads=1,
            pipeline_model_parallel_size=pipeline,
            virtual_pipeline_model_parallel_size=pieces,
            pipeline_dtype="bfloat16",
            **keys,
        )
        if config.virtual_pipeline_model_parallel_size != pieces:
            return None  # the trainer refuses another number of pieces than virtualPipeline says (provider.py)
        if layout := config.pipeline_model_parallel_layout:
            found = [[piece.count(LayerType.decoder) for piece in stage] for stage in layout.layout]
        else:
            numbers = range(pieces) if pieces else [None]
            found = [[get_num_layers_to_build(config, piece, stage) for piece in numbers] for stage in range(pipeline)]
    except (AssertionError, ValueError):
        return None
    return found if all(sum(stage) > 0 and min(stage) >= 0 for stage in found) else None
