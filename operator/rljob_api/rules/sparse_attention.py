"""A model whose queries attend to tokens that an indexer chooses: what config.json says of its indexers, and what a job may."""

from collections.abc import Iterator
from itertools import accumulate, chain
from typing import Any

from rljob_api.families import has_sparse_attention
from rljob_api.indexers import FULL, indexers_of, scheduled_indexers
from rljob_api.rules.engine import SIZES, Violation
from rljob_api.rules.keys import TRANSFORMER
from rljob_api.rules.layout import JudgedRanks
from rljob_api.sizing.split import WRITTEN, Unsplit, split
from rljob_api.spec import RLJobSpec
from rljob_api.type_errors import as_written

SCHEDULE = "index_topk_freq, index_skip_topk_offset and index_topk_pattern"


def schedule_violations(spec: RLJobSpec, config: dict[str, Any]) -> Iterator[Violation]:
    """transformers and the trainer go by one key, and vLLM by others."""
    if has_sparse_attention(config) and config.get("num_hidden_layers") and _contradicts(config):
        rule = f"its indexer_types are not what {SCHEDULE} say, by which vLLM goes"
        yield Violation("spec.model.path", spec.model.path, rule, "restore the file from where the model was published")


def _contradicts(config: dict[str, Any]) -> bool:
    return indexers_of(config) != scheduled_indexers(config)


def indexer_violations(ranks: JudgedRanks, config: dict[str, Any]) -> Iterator[Violation]:
    """Keys that the trainer's attention would not read, and stages that begin with a layer that takes the choice of another."""
    if not has_sparse_attention(config):
        return
    given = ranks.settings.transformer_config
    for key in (key for key in given if key.startswith("dsa_")):
        rule = "config.json says how the indexer chooses, and it is frozen"
        yield Violation(ranks.at(f"{TRANSFORMER}.{key}"), as_written(given[key]), rule, "remove it")
    if config.get("num_hidden_layers"):
        yield from _stage_violations(ranks, config)


def _stage_violations(ranks: JudgedRanks, config: dict[str, Any]) -> Iterator[Violation]:
    layout, kinds = ranks.layout, indexers_of(config)
    given = ranks.settings.transformer_config if layout.pipeline > 1 else {}
    try:
        cut = split(len(kinds), layout.pipeline, layout.virtual_pipeline, given)
    except Unsplit:  # named by another rule
        return
    sizes = [*chain.from_iterable(zip(*cut.pieces, strict=True))]
    firsts = accumulate(sizes[:-1], initial=0)
    without = [first for first, size in zip(firsts, sizes, strict=True) if size and kinds[first] != FULL]
    if without:
        rule = f"a piece of a stage would begin with layer {without[0]}, which takes the tokens that the one before it attends to"
        whole = ", ".join(str(i) for i, kind in enumerate(kinds) if kind == FULL)
        fix = f"set {WRITTEN} in transformerConfig so that pieces begin with any of the layers {whole}"
        yield Violation(ranks.at(f"{SIZES}.pipeline"), str(layout.pipeline), rule, fix)
