"""How megatron-core cuts the layers of a model into pipeline stages, in equal shares or by keys of transformerConfig.

A stage consists of as many pieces as `virtualPipeline` says, which run interleaved. There are three ways besides equal shares
(core/transformer/transformer_config.py:1922-2110, transformer_block.py:70-180 and pipeline_parallel_layer_layout.py of 0.19.2):

    first, last   layers of the first stage, of the last one or of both; the stages between them share the others equally
    accounted     the embedding, the output layer or both count as a layer of the stage that they are in
    written       the layers of every piece, as `Et*3|(tt|)*29,L` or as a list of lists; megatron numbers pieces stage by stage, then round again
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any
from zlib import crc32

FIRST, LAST = "num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage"
EMBEDDING, LOSS = "account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split"
WRITTEN = "pipeline_model_parallel_layout"
WAYS = ((WRITTEN,), (FIRST, LAST), (EMBEDDING, LOSS))
"""Keys of transformerConfig by which stages get other than equal shares of the layers; each line is one way."""
LETTERS = {"E": "embedding", "t": "decoder", "L": "loss"}
REPEATED = (re.compile(r"\(([^)]+)\)\*(\d+)"), re.compile(r"(.)\*(\d+)"))
MOST = 4096
"""Pieces, and characters of a written layout, at most: more than any model has layers."""


@dataclass(frozen=True, slots=True)
class Split:
    """Layers by stage, and within a stage by piece."""

    pieces: tuple[tuple[int, ...], ...]

    @property
    def stages(self) -> list[int]:
        return [sum(stage) for stage in self.pieces]

    @property
    def largest_piece(self) -> int:
        return max(max(stage) for stage in self.pieces)

    @property
    def even(self) -> bool:
        return len(set(self.stages)) == 1

    def leading(self, count: int) -> list[int]:
        """By stage, how many of its layers are among the first `count` of the model."""
        counts, left = [0] * len(self.pieces), count
        for turn in zip(*self.pieces, strict=True):
            for stage, layers in enumerate(turn):
                counts[stage] += min(left, layers)
                left -= min(left, layers)
        return counts


class Unsplit(Exception):
    """Layers that megatron-core does not cut so. `where`: the size that does not divide, as in spec.trainer.parallelism, or a key of
    transformerConfig."""

    def __init__(self, where: str, rule: str, fix: str) -> None:
        super().__init__(f"{where}: {rule}")
        self.where, self.rule, self.fix = where, rule, fix


def split(layers: int, pipeline: int, virtual: int, given: Mapping[str, Any]) -> Split:
    """`given`: transformerConfig. Raises Unsplit."""
    if pipeline * virtual > MOST:
        raise Unsplit("pipeline", f"pipeline x virtualPipeline is more than {MOST}", "lower one of them")
    if given.get(WRITTEN) is not None:
        return _written(layers, pipeline, virtual, given[WRITTEN])
    stages, ends = _stages(layers, pipeline, virtual, given)
    for stage in sorted(set(stages)):
        if stage % virtual:
            counted = "" if _key(given) else "num_hidden_layers / pipeline = "
            rule = f"{counted}{stage} layers of a stage are not divisible by it"
            raise Unsplit("virtualPipeline", rule, f"choose a divisor of {stage}")
    pieces = [[stage // virtual] * virtual for stage in stages]
    pieces[0][0] -= ends[0]
    pieces[-1][-1] -= ends[1]
    return _checked(pieces, _key(given))


def even_split(layers: int, pipeline: int, virtual: int = 1) -> dict[str, Any] | None:
    """Keys of transformerConfig for stages as equal as the layers allow, with fewer on the first and the last stage, which have the embedding and the
    output layer too; empty: equal shares; None: there are fewer layers than pieces of stages."""
    if layers < pipeline * virtual:
        return None
    if layers % (pipeline * virtual) == 0:
        return {}
    if (layers + 2) % (pipeline * virtual) == 0 and (layers + 2) // pipeline > 1:
        return {EMBEDDING: True, LOSS: True}
    between = -(-layers // pipeline)
    ends = layers - between * (pipeline - 2)
    first, last = -(-ends // 2), ends // 2
    if last >= 1 and all(stage % virtual == 0 for stage in (first, between, last)):
        return {FIRST: first, LAST: last}
    return {WRITTEN: _even_layout(layers, pipeline, virtual)}


def _even_layout(layers: int, pipeline: int, virtual: int) -> str:
    """As many consecutive pieces as layers are over have one more, from a stage on that leaves the ends out where it can."""
    each, over = divmod(layers, pipeline * virtual)
    first = -over % pipeline // 2
    rows = ["t" * (each + (first <= piece < first + over)) for piece in range(pipeline * virtual)]
    between = [(row, len([*same])) for row, same in groupby(rows[1:-1])]
    repeated = (f"({row}|)*{count}" if count > 1 else f"{row}|" for row, count in between)
    return f"E{rows[0]}|{''.join(repeated)}{rows[-1]}L"


def named(given: Mapping[str, Any]) -> str:
    """A word for how transformerConfig cuts stages, for example `first16` or `embedding+loss`; empty: equally."""
    if given.get(WRITTEN) is not None:
        return f"written{crc32(json.dumps(given[WRITTEN], default=str).encode()):08x}"
    ends = [f"{word}{given[key]}" for key, word in ((FIRST, "first"), (LAST, "last")) if given.get(key) is not None]
    return "+".join([*ends, *(word for key, word in ((EMBEDDING, "embedding"), (LOSS, "loss")) if given.get(key))])


def _key(given: Mapping[str, Any]) -> str:
    """The key that users set; empty: none."""
    return next((key for way in WAYS for key in way if given.get(key)), "")


def _stages(layers: int, pipeline: int, virtual: int, given: Mapping[str, Any]) -> tuple[list[int], tuple[bool, bool]]:
    """Layers of each stage, among which the embedding and the output layer may count as one each."""
    if given.get(FIRST) is not None or given.get(LAST) is not None:
        return _with_ends(layers, pipeline, virtual, given), (False, False)
    ends = bool(given.get(EMBEDDING)), bool(given.get(LOSS))
    total = layers + sum(ends)
    if total % pipeline and any(ends):
        rule = f"num_hidden_layers = {layers} and what is accounted for are {total}, not divisible by pipeline = {pipeline}"
        raise Unsplit(_key(given), rule, divide(layers, pipeline, virtual))
    if total % pipeline:
        rule = f"num_hidden_layers = {layers} of the model is not divisible by it"
        raise Unsplit("pipeline", rule, divide(layers, pipeline, virtual))
    return [total // pipeline] * pipeline, ends


def _with_ends(layers: int, pipeline: int, virtual: int, given: Mapping[str, Any]) -> list[int]:
    fixed = {key: given[key] for key in (FIRST, LAST) if given.get(key) is not None}
    for key, count in fixed.items():
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise Unsplit(key, "must be a whole number from 1", "write the number of layers of that stage")
    left, stages, key = layers - sum(fixed.values()), pipeline - len(fixed), next(iter(fixed))
    if left < 0 or bool(left) != bool(stages) or (stages and left % stages):
        rule = f"leaves {left} of {layers} layers for {stages} other stages, which must share them equally"
        raise Unsplit(key, rule, divide(layers, pipeline, virtual))
    between = [left // stages] * stages if stages else []
    return [*([fixed[FIRST]] if FIRST in fixed else []), *between, *([fixed[LAST]] if LAST in fixed else [])]


def divide(layers: int, pipeline: int, virtual: int) -> str:
    """What to write so that the layers divide."""
    keys = even_split(layers, pipeline, virtual)
    if not keys:
        return f"choose a divisor of {layers}"
    named = ", ".join(f"{key}: {json.dumps(value)}" for key, value in keys.items())
    return f"choose a divisor of {layers}, or set {named} in transformerConfig, for stages of other than equal size"


def _written(layers: int, pipeline: int, virtual: int, layout: Any) -> Split:
    rows = _rows(layout)
    if len(rows) % pipeline == 0 and len(rows) != pipeline * virtual:
        each = len(rows) // pipeline
        raise Unsplit("virtualPipeline", f"{WRITTEN} cuts every stage into {each} pieces", f"set {each}")
    if len(rows) != pipeline * virtual:
        rule = f"has {len(rows)} pieces, and pipeline x virtualPipeline is {pipeline} x {virtual}"
        raise Unsplit(WRITTEN, rule, "write one for each piece of a stage")
    if not rows[0][:1] == ["embedding"] or not rows[-1][-1:] == ["loss"]:
        raise Unsplit(WRITTEN, "the embedding (E) comes first, the output layer (L) last", "begin with E, end with L")
    count = sum(row.count("decoder") for row in rows)
    if count != layers or sum(map(len, rows)) != layers + 2:
        rule = f"has {count} layers (t), and the model {layers}"
        raise Unsplit(WRITTEN, rule, "write each layer once, E and L once")
    counts = [row.count("decoder") for row in rows]
    return _checked([counts[stage::pipeline] for stage in range(pipeline)], WRITTEN)


def _rows(layout: Any) -> list[list[str]]:
    if isinstance(layout, str):
        return _parsed(layout)
    rows = isinstance(layout, list) and len(layout) <= MOST and all(isinstance(row, list) for row in layout)
    if not rows or not all(isinstance(one, str) for row in layout for one in row):
        raise Unsplit(WRITTEN, "must be a text, or a list of lists of names of layers", "write it as Et*3|(tt|)*2,L")
    written = [[one.strip().lower() for one in row] for row in layout]
    _require({one for row in written for one in row} - set(LETTERS.values()))
    return written


def _parsed(layout: str) -> list[list[str]]:
    """megatron-core's grammar (`parse_str_to_list`), with bounds: it writes out what is repeated."""
    text = layout.replace(",", "")
    for pattern in REPEATED:
        if len(text) > MOST or sum(len(one) * int(count) for one, count in pattern.findall(text)) > MOST:
            raise Unsplit(WRITTEN, f"has more than {MOST} characters when it is written out", "repeat less")
        text = pattern.sub(_repeated, text)
    _require(set(text) - {*LETTERS, "|"})
    return [[LETTERS[letter] for letter in row] for row in text.split("|")]


def _repeated(part: re.Match[str]) -> str:
    return part[1] * int(part[2])


def _require(unknown: set[str]) -> None:
    if unknown:
        raise Unsplit(WRITTEN, f"has {min(unknown)!r}", "only E or embedding, t or decoder, and L or loss are trained")


def _checked(pieces: Sequence[Sequence[int]], key: str) -> Split:
    if any(sum(stage) < 1 or min(stage) < 0 for stage in pieces):
        raise Unsplit(key, "leaves a stage without layers", "lower pipeline, or give it a layer")
    return Split(tuple(tuple(stage) for stage in pieces))
