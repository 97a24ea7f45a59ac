"""What leaves the engine when. The scheduler below is a stand-in; with vLLM's: test_generate_served.py."""

from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

from rljob_trainer.server.compat.pieces import PIECE, InPieces, LogProbs, Pieces

A, B, STOPPED, GONE = [name for name in map(str, range(1000)) if hash(name) % PIECE == 0][:4]
"""Requests whose first PIECE-th output is that of the PIECE-th step."""
SPECIAL = [
    "finish_reason",
    "prefill_stats",
    "events",
    "new_prompt_logprobs_tensors",
    "pooling_output",
    "kv_transfer_params",
    "ec_transfer_params",
    "mm_cache_miss_hashes",
    "new_sampling_mask",
    "spec_decode_metrics",
    "prompt_token_id_logprobs",
]


class Rows(NamedTuple):
    """As vLLM's LogprobsLists."""

    logprob_token_ids: np.ndarray
    logprobs: np.ndarray
    sampled_token_ranks: np.ndarray
    cu_num_generated_tokens: list[int] | None = None

    def slice_request(self, index: int, tokens: int) -> "Rows":
        begin = self.cu_num_generated_tokens[index] if self.cu_num_generated_tokens else index
        return Rows(*(rows[begin : begin + tokens] for rows in self[:3]))


def output(request: str, *tokens: int, nans: int = 0, **special: Any) -> Any:
    """Of a step in which the request drew `tokens`."""
    fields = dict.fromkeys([*SPECIAL, "routed_experts"]) | special
    fields |= {"num_nans_in_logits": nans}
    log_probs = LogProbs(step_of([*tokens])).slice_request(0, len(tokens))
    return SimpleNamespace(request_id=request, new_token_ids=list(tokens), new_logprobs=log_probs, **fields)


def step_of(tokens: list[int]) -> Rows:
    """With a log-probability of -token and a rank of token + 1 for every token."""
    ids = np.array(tokens, dtype=np.int32).reshape(-1, 1)
    return Rows(ids, -ids.astype(np.float32), ids[:, 0] + 1)


def said(outputs: list[Any]) -> list[tuple[str, list[int]]]:
    """Requests and tokens, whose log-probabilities have to be theirs."""
    for o in outputs:
        ids, log_probs, ranks, _ = o.new_logprobs
        assert isinstance(o.new_logprobs, Rows), "as vLLM's encoder takes them"
        assert ids[:, 0].tolist() == o.new_token_ids == (-log_probs[:, 0]).tolist() == (ranks - 1).tolist()
        assert (ids.dtype, log_probs.dtype) == (np.int32, np.float32)
    return [(o.request_id, o.new_token_ids) for o in outputs]


def test_a_requests_outputs_leave_in_pieces_that_are_spread_over_the_steps_and_its_last_at_once() -> None:
    pieces, requests = Pieces(Rows), [f"r{i}" for i in range(64)]
    steps = [pieces.due([output(r, i) for r in requests]) for i in range(3 * PIECE)]
    assert max(map(len, steps)) < 32
    for request in requests:
        found = [(i, o.new_token_ids) for i, step in enumerate(steps) for o in step if o.request_id == request]
        assert [i for i, _ in found] == [found[0][0] + PIECE * k for k in range(3)]
        assert [t for _, tokens in found for t in tokens] == [*range(found[-1][0] + 1)]
    last = [o for step in steps for o in step if o.request_id == "r0"][-1].new_token_ids[-1]
    (end,) = pieces.due([output("r0", 70, finish_reason=0)])
    assert said([end]) == [("r0", [*range(last + 1, 3 * PIECE), 70])] and end.finish_reason == 0


def test_several_tokens_of_a_step_and_none_keep_their_order() -> None:
    pieces = Pieces(Rows)
    pieces.due([output(A, 1, 2, 3)])
    pieces.due([output(A, 4)])
    assert said(pieces.due([output(A, finish_reason=3)])) == [(A, [1, 2, 3, 4])]


@pytest.mark.parametrize("special", SPECIAL)
def test_what_is_not_only_tokens_is_never_held_back(special: str) -> None:
    pieces = Pieces(Rows)
    pieces.due([output(A, 1)])
    (found,) = pieces.due([output(A, 2, **{special: "something"})])
    assert said([found]) == [(A, [1, 2])] and getattr(found, special) == "something"
    assert pieces.due([output(A, 3)]) == []


def test_nans_in_the_logits_of_any_step_are_told_with_the_piece() -> None:
    pieces = Pieces(Rows)
    pieces.due([output(A, 1, nans=5)])
    pieces.due([output(A, 2)])
    (found,) = pieces.due([output(A, 3, finish_reason=0)])
    assert found.num_nans_in_logits == 5


def test_the_experts_of_all_steps_leave_with_the_piece() -> None:
    pieces = Pieces(Rows)
    assert pieces.due([output(A, 1, routed_experts=np.array([[[1, 2]], [[3, 4]]]))]) == [], "of a prompt of two tokens"
    pieces.due([output(A, 2, routed_experts=np.array([[[5, 6]]]))])
    (found,) = pieces.due([output(A, 3, routed_experts=np.array([[[7, 8]]]), finish_reason=0)])
    assert found.routed_experts.tolist() == [[[1, 2]], [[3, 4]], [[5, 6]], [[7, 8]]]


def test_a_request_without_log_probabilities_has_none() -> None:
    pieces = Pieces(Rows)
    plain = [output(A, i) for i in range(PIECE)]
    for o in plain:
        o.new_logprobs = None
    (found,) = [whole for o in plain for whole in pieces.due([o])]
    assert found.new_token_ids == [*range(PIECE)] and found.new_logprobs is None


def test_steps_beside_requests_that_ask_for_more_are_wider_and_still_join() -> None:
    """vLLM's rows of a step are as wide as the request in it that asks for most; a request's own numbers come first."""
    pieces = Pieces(Rows)
    narrow, wide = output(A, 1), output(A, 2, finish_reason=0)
    ids, log_probs, ranks, _ = step_of([9, 2])
    rows = Rows(*(np.pad(rows, ((0, 0), (0, 5))) for rows in (ids, log_probs)), ranks)
    wide.new_logprobs = LogProbs(rows).slice_request(1, 1)
    pieces.due([narrow])
    assert said(pieces.due([wide])) == [(A, [1, 2])]


def test_each_request_of_a_step_gets_its_own_log_probabilities() -> None:
    step = LogProbs(step_of([7, 8, 9]))
    assert [step.slice_request(i, 1) for i in range(3)] == [(-7.0, 8), (-8.0, 9), (-9.0, 10)]
    several = LogProbs(step_of([7, 8, 9])._replace(cu_num_generated_tokens=[0, 1, 3]))
    assert several.slice_request(1, 2).logprobs[:, 0].tolist() == [-8.0, -9.0]
    assert several.slice_request(0, 1).logprobs[:, 0].tolist() == [-7.0]


class Scheduler:
    """Returns what it is given, as vLLM's; nothing when there is nothing."""

    def __init__(self) -> None:
        stops = {A: None, B: [], STOPPED: ["</answer>"]}
        self.requests = {
            name: SimpleNamespace(sampling_params=SimpleNamespace(stop=stop), client_index=0)
            for name, stop in stops.items()
        }
        self.pause = 0

    def set_pause_state(self, state: int) -> None:
        self.pause = state

    def has_requests(self) -> bool:
        return self.pause == 0

    def update_from_output(self, outputs: list[Any], computed: Any) -> dict[int, Any]:
        for i, o in enumerate(outputs):
            o.new_logprobs = computed.logprobs.slice_request(i, len(o.new_token_ids))
        said = SimpleNamespace(outputs=outputs, finished_requests={"x"}, scheduler_stats="statistics")
        return {0: said} if outputs else {}

    def finish_requests(self, requests: list[str], status: str) -> list[Any]:
        return [
            SimpleNamespace(request_id=request, client_index=0, get_finished_reason=lambda: status)
            for request in requests
        ]


class UnderTest(InPieces, Scheduler):
    new_rows = Rows

    def step(self, *outputs: Any) -> Any:
        """What goes out after a step."""
        tokens = [token for o in outputs for token in o.new_token_ids]
        return self.update_from_output([*outputs], SimpleNamespace(logprobs=step_of(tokens) if tokens else None))

    @staticmethod
    def new_outputs() -> Any:
        return SimpleNamespace(outputs=[])


def test_the_scheduler_holds_back_outputs_and_nothing_else() -> None:
    found = UnderTest().step(output(A, 1))[0]
    assert (found.outputs, found.finished_requests, found.scheduler_stats) == ([], {"x"}, "statistics")


def test_nothing_is_held_back_of_a_request_that_a_text_may_end() -> None:
    """vLLM's API server looks for the text in an output as a whole: tokens behind it would come with a piece."""
    scheduler = UnderTest()
    for token in (1, 2):
        found = scheduler.step(*(output(r, token) for r in (A, STOPPED, GONE)))[0]
        assert said(found.outputs) == [(STOPPED, [token])]


@pytest.mark.parametrize("busy", [True, False])
def test_what_is_held_back_of_an_aborted_request_goes_out_with_its_end(busy: bool) -> None:
    """In the next step, whether or not that has something else to say."""
    scheduler = UnderTest()
    scheduler.step(output(A, 1), output(B, 2))
    scheduler.step(output(A, 3))
    others = scheduler.finish_requests([A, "c"], "aborted")
    assert [r.request_id for r in others] == ["c"], "nothing is held back of c: who aborts it tells its client"
    found = scheduler.step(*([output(B, 4, finish_reason=0)] if busy else []))[0]
    assert said(found.outputs) == [(B, [2, 4])] * busy + [(A, [1, 3])]
    assert found.outputs[-1].finish_reason == "aborted"
    assert scheduler.step() == {}


@pytest.mark.parametrize("in_flight", [True, False])
def test_a_pause_is_complete_when_nothing_is_held_back(in_flight: bool) -> None:
    """Tokens that come after it may be of another policy. A step that was computed before it may still end in it."""
    scheduler = UnderTest()
    scheduler.step(output(A, 1), output(B, 2))
    scheduler.set_pause_state(2)
    assert scheduler.has_requests(), "the engine makes a step to let go of them"
    found = scheduler.step(*([output(A, 3)] if in_flight else []))[0]
    assert sorted(said(found.outputs)) == sorted([(A, [1, 3] if in_flight else [1]), (B, [2])])
    assert not scheduler.has_requests() and scheduler.step() == {}
    scheduler.set_pause_state(0)
    assert scheduler.step(output(A, 4))[0].outputs == [], "held back as ever"
