"""A request's outputs leave vLLM's engine in pieces of PIECE steps: a token's log-probability costs the API server as much to receive as 16 do.

What is held back of a request that is aborted goes out with its end. Nothing may be lost there: of what is held back all that ends a response
has gone out already, so drawing the rest again would end responses more often than the policy does. A pause is complete when nothing is held back
any more, because the next tokens may be of another policy, and vLLM names the policy of an output when it goes out. No vLLM and no torch here.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from rljob_api.callbacks import never

PIECE = 16
"""Steps of the engine; each draws a token of a response."""


class LogProbs:
    """A step's log-probabilities, in place of vLLM's LogprobsLists, of which its scheduler cuts each request's part.

    Cutting three arrays for every token costs as much as all else that is done here. So a request that draws one token gets two numbers, and a piece
    makes arrays of them. Where one draws several, or some request asks for more than the drawn token's, vLLM's own arrays are cut.
    """

    def __init__(self, whole: Any) -> None:
        self._whole = whole
        self._simple = whole.logprobs.shape[1] == 1 and whole.cu_num_generated_tokens is None
        if self._simple:
            self._log_probs, self._ranks = whole.logprobs[:, 0].tolist(), whole.sampled_token_ranks.tolist()

    def slice_request(self, index: int, tokens: int) -> Any:
        """Of a request, by its index in the step: a pair of numbers for one token, else LogprobsLists."""
        if self._simple and tokens == 1:
            return self._log_probs[index], self._ranks[index]
        return self._whole.slice_request(index, tokens)


class Pieces:
    """What is held back. Outputs are vLLM's EngineCoreOutput, with log-probabilities of LogProbs; what goes out has vLLM's again, which `rows` makes
    of their fields."""

    def __init__(self, rows: Callable[..., Any]) -> None:
        self._rows = rows
        self._held: dict[str, list[Any]] = {}
        self._step = 0

    def due(self, outputs: Iterable[Any], at_once: Callable[[str], bool] = never) -> list[Any]:
        """What goes out after a step that made `outputs`: a request's first, its last, and every PIECE-th, with those before it. Of requests
        `at_once` everything.

        Every step is another request's PIECE-th: all at once would be a pause of 4 ms with 512 requests (joining one takes 7 us).
        """
        self._step += 1
        ready = []
        for output in outputs:
            request = output.request_id
            held = self._held.get(request)
            if held is not None:
                held.append(output)
            elif not at_once(request):
                self._held[request] = held = [output]
            if held is None:
                ready.append(joined([output], self._rows))
            elif (hash(request) + self._step) % PIECE == 0 or not _is_only_tokens(output):
                ready.append(self.take(request))
        return ready

    def take(self, request_id: str) -> Any | None:
        """What is held back of a request that makes no more outputs."""
        held = self._held.pop(request_id, None)
        return held and joined(held, self._rows)

    @property
    def held(self) -> list[str]:
        """Requests of which something is held back."""
        return list(self._held)


class InPieces:
    """Mixed into one of vLLM's schedulers."""

    new_outputs: ClassVar[Callable[[], Any]]
    """An empty EngineCoreOutputs."""
    new_rows: ClassVar[Callable[..., Any]]
    """LogprobsLists of its fields."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._pieces = Pieces(type(self).new_rows)
        self._ends: list[tuple[int, Any]] = []
        self._paused = False

    def set_pause_state(self, state: int) -> None:
        super().set_pause_state(state)  # type: ignore[misc]
        self._paused = state != 0

    def has_requests(self) -> bool:
        """Whether the engine has to make a step: one without tokens lets go what is held back in a pause."""
        return super().has_requests() or (self._paused and bool(self._pieces.held))  # type: ignore[misc]

    def update_from_output(self, scheduled: Any, computed: Any) -> dict[int, Any]:
        """By client. What a step has to say besides its requests' outputs is not held back."""
        if computed.logprobs is not None:
            computed.logprobs = LogProbs(computed.logprobs)
        outputs: dict[int, Any] = super().update_from_output(scheduled, computed)  # type: ignore[misc]
        for of_client in outputs.values():
            of_client.outputs = self._pieces.due(of_client.outputs, self._has_stop_texts)
        for client, end in self._ends:
            outputs.setdefault(client, type(self).new_outputs()).outputs.append(end)
        self._ends.clear()
        for request in self._pieces.held if self._paused else ():
            client = self.requests[request].client_index  # type: ignore[attr-defined]
            outputs.setdefault(client, type(self).new_outputs()).outputs.append(self._pieces.take(request))
        return outputs

    def finish_requests(self, *which: Any) -> list[Any]:
        """Those that end here for a reason outside of the scheduler, such as an abort: the caller tells their clients so.

        Of whom something is held back, we tell it, with that, after the step in which the workers hear of it: vLLM always makes one
        (v1/core/sched/scheduler.py, has_finished_requests), and a pause is complete after it.
        """
        return [request for request in super().finish_requests(*which) if not self._ended(request)]  # type: ignore[misc]

    def _has_stop_texts(self, request_id: str) -> bool:
        """The API server looks for them in every output as a whole, so that a piece would end the response up to PIECE - 1 tokens late."""
        request = self.requests.get(request_id)  # type: ignore[attr-defined]
        return bool(request and request.sampling_params and request.sampling_params.stop)

    def _ended(self, request: Any) -> bool:
        """Whether its end goes out with what is held back of it."""
        end = self._pieces.take(request.request_id)
        if end is None:
            return False
        end.finish_reason = request.get_finished_reason()
        self._ends.append((request.client_index, end))
        return True


def joined(outputs: Sequence[Any], rows: Callable[..., Any]) -> Any:
    """The last, with the tokens, log-probabilities and experts of all, and the most NaNs of a step. Those before it have nothing else."""
    last = outputs[-1]
    steps = [(o.new_token_ids, o.new_logprobs) for o in outputs if o.new_logprobs is not None]
    if steps:
        last.new_logprobs = rows(*_arrays(steps), None)
    if len(outputs) > 1:
        last.new_token_ids = [token for output in outputs for token in output.new_token_ids]
        experts = [output.routed_experts for output in outputs if output.routed_experts is not None]
        if experts:
            last.routed_experts = np.concatenate(experts)
        last.num_nans_in_logits = max([output.num_nans_in_logits for output in outputs])
    return last


def _arrays(steps: Sequence[tuple[list[int], Any]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Token ids and log-probabilities, a row for each token, and the ranks of the tokens drawn. Of each step its tokens and what LogProbs gave."""
    if {len(log_probs_of_step) for _, log_probs_of_step in steps} == {2}:
        log_probs, ranks = zip(*[log_probs_of_step for _, log_probs_of_step in steps], strict=True)
        numbers = np.array([[tokens[0] for tokens, _ in steps], ranks], np.int32)
        return numbers[0].reshape(-1, 1), np.array(log_probs, np.float32).reshape(-1, 1), numbers[1]
    whole = [
        _arrays([(tokens, log_probs_of_step)]) if len(log_probs_of_step) == 2 else log_probs_of_step[:3]
        for tokens, log_probs_of_step in steps
    ]
    ids, log_probs, ranks = zip(*whole, strict=True)
    return np.concatenate(_as_narrow(ids)), np.concatenate(_as_narrow(log_probs)), np.concatenate(ranks)


def _as_narrow(steps: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
    """As their narrowest. A step's rows have as many columns as the request in it that asks for most; each request's own are the first."""
    widths = {rows.shape[1] for rows in steps}
    return steps if len(widths) == 1 else [rows[:, : min(widths)] for rows in steps]


def _is_only_tokens(output: Any) -> bool:
    return (
        output.finish_reason is None
        and output.prefill_stats is None
        and output.events is None
        and output.new_prompt_logprobs_tensors is None
        and output.pooling_output is None
        and output.kv_transfer_params is None
        and output.ec_transfer_params is None
        and output.mm_cache_miss_hashes is None
        and output.new_sampling_mask is None
        and output.spec_decode_metrics is None
        and output.prompt_token_id_logprobs is None
    )
