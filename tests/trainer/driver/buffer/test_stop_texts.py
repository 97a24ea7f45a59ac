"""Texts that end a response which weight updates cut into pieces: servers look for them in one piece only."""

from itertools import pairwise

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from rljob_trainer.driver.buffer.partial_sample import PartialSample
from rljob_trainer.wire.rollout_client import FinishReason, Generation
from rljob_trainer.wire.trajectory import sampled


def decoded(tokens: list[int]) -> str:
    """A character for each."""
    return "".join("ab<"[t] for t in tokens)


def server_writes(tokens: list[int], stop: list[str]) -> tuple[list[int], FinishReason]:
    """Of these, and why no more: the first text of `stop` in them ends them."""
    ends = [n for n in range(1, len(tokens) + 1) if any(text in decoded(tokens[:n]) for text in stop)]
    return (tokens[: ends[0]], "stop") if ends else (tokens, "abort")


@given(
    st.lists(st.integers(0, 2), max_size=12),
    st.lists(st.integers(0, 12), max_size=3),
    st.lists(st.text("ab<", min_size=1, max_size=3), min_size=1, max_size=2),
)
@example([0, 2, 1, 0, 0], [2], ["<b"])
@example([0, 2, 2], [2], ["<<"])
def test_a_response_in_pieces_ends_where_one_in_one_piece_does(
    tokens: list[int], cuts: list[int], stop: list[str]
) -> None:
    whole, reason = server_writes(tokens, stop)
    sample = PartialSample()
    for step, (begin, end) in enumerate(pairwise((0, *sorted(min(c, len(tokens)) for c in cuts), len(tokens)))):
        piece, why = server_writes(tokens[begin:end], stop)
        sample.add(Generation(np.array(piece, np.int32), np.full(len(piece), -1, np.float32), why, step))
        sample.end_at(stop, begin, decoded)
        if sample.finish_reason != "abort":
            break
    written = [t for s in sample.response for t in s.tokens.tolist()]
    assert (written, sample.finish_reason) == (whole, reason)
    assert all(s.log_probs is not None and len(s.log_probs) == len(s.tokens) for s in sample.response)


def test_a_text_far_from_every_cut_is_not_looked_for() -> None:
    looked_at = list[int]()

    def measured(tokens: list[int]) -> str:
        looked_at.append(len(tokens))
        return decoded(tokens)

    sample = PartialSample((sampled(np.zeros(100_000, np.int32), np.zeros(100_000, np.float32), 0),))
    sample.end_at(["b"], 50_000, measured)
    assert sample.length == 100_000 and max(looked_at) < 20 and len(looked_at) < 20
