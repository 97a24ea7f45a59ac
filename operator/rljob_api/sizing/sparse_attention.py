"""What sparse attention keeps and computes besides attention, as the trainer implements it (its megatron/plain_torch/sparse_attention.py).

For a query in a sample of more than k tokens an indexer chooses k; in a shorter one there is nothing to choose.

Kept: for a token and a layer with an indexer 4 k + 8 bytes, the numbers of the chosen tokens (int32) and that of the last token which the query may
attend to (int64). Each tensor-parallel rank has all of them. Attention needs them until its backward pass; where it is computed again, so are they.
But where layers take the choices of an earlier one, these stay for all of them until the backward pass of that one, whatever is computed again.

Computed: for l tokens l^2 / 2 scores of each of the indexer's heads of width d, on each tensor-parallel rank and in float32: 2 d operations, and 32
bytes of the GPU's memory, since the product is written, cut at 0, weighted and added one after the other. Only forward passes have them, and layers
that are computed again, unless their choices stayed. Attention to the chosen tokens takes as many operations as to all, once more before its backward
pass, for which nothing of it is kept.
"""

from rljob_api.sizing.layout import Amounts
from rljob_api.sizing.shape import Shape
from rljob_api.spec import RLJobSpec
from rljob_api.spec.processes import Recompute

NUMBER, LAST = 4, 8
"""Bytes of the number of a chosen token, and of that of the last one."""
SCORE = 4 * (1 + 2 + 2 + 3)
"""Bytes that are read and written for a score of one head."""


def chooses(spec: RLJobSpec, shape: Shape) -> bool:
    """Whether the longest sample has more tokens than its queries attend to."""
    return shape.latent is not None and 0 < shape.latent.chosen < Amounts.of(spec).longest


def choices(spec: RLJobSpec, shape: Shape) -> float:
    """Bytes for a token and layer, as the mean of all layers."""
    if not shape.latent or not chooses(spec, shape):
        return 0.0
    return shape.latent.indexed * (NUMBER * shape.latent.chosen + LAST)


def is_shared(shape: Shape) -> bool:
    """Whether layers take the choices of an earlier one."""
    return shape.latent is not None and shape.latent.indexed < 1


def layers_kept(recompute: Recompute, layers: float, whole: float) -> float:
    """Where each layer chooses by itself: of a stage's layers, those whose choices are kept between a forward and a backward pass. `whole`: those
    that are not computed again."""
    if recompute.granularity == "full":
        return whole
    return 0.0 if attends_again(recompute) else layers


def attends_again(recompute: Recompute) -> bool:
    """Whether attention alone is computed again, and the choices of one layer are there at a time, whatever waits for a backward pass."""
    return recompute.granularity == "selective" and "core_attn" in recompute.modules


def scores(spec: RLJobSpec, shape: Shape) -> tuple[float, float]:
    """Operations in float32, and bytes of a GPU's memory, of the scores of a layer for the longest sample, as the mean of all layers."""
    if not shape.latent or not chooses(spec, shape):
        return 0.0, 0.0
    of_heads = shape.latent.indexed * shape.latent.index_heads * Amounts.of(spec).longest ** 2 / 2
    return of_heads * 2 * shape.latent.index_head, of_heads * SCORE
