"""A request's outputs leave vLLM's engine in pieces of PIECE steps: a token's log-probability costs the API server as much to receive as 16 do.

What is held back when a request is aborted is lost, tokens and log-probabilities together: an interrupted response lacks its last steps, and
whoever goes on with it draws them again. No vLLM and no torch here.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

PIECE = 16
"""Steps of the engine; each draws a token of a response."""


class Pieces:
    """What is held back. Outputs are vLLM's EngineCoreOutput."""

    def __init__(self) -> None:
        self._held: dict[str, list[Any]] = {}

    def due(self, outputs: Iterable[Any]) -> list[Any]:
        """What goes out after a step that made `outputs`: a request's first, its last, and every PIECE-th, with those before it."""
        return [whole for output in outputs if (whole := self._add(output)) is not None]

    def drop(self, request_id: str) -> None:
        """The request is aborted."""
        self._held.pop(request_id, None)

    def _add(self, output: Any) -> Any | None:
        held = self._held.setdefault(output.request_id, [])
        held.append(output)
        if len(held) < PIECE and _is_only_tokens(output):
            return None
        del self._held[output.request_id]
        return joined(held)


class InPieces:
    """Mixed into one of vLLM's schedulers."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._pieces = Pieces()

    def update_from_output(self, *step: Any) -> dict[int, Any]:
        """By client. What a step has to say besides its requests' outputs is not held back."""
        found: dict[int, Any] = super().update_from_output(*step)  # type: ignore[misc]
        for of_client in found.values():
            of_client.outputs = self._pieces.due(of_client.outputs)
        return found

    def finish_requests(self, *which: Any) -> list[Any]:
        """For a reason outside of the scheduler, such as an abort."""
        finished: list[Any] = super().finish_requests(*which)  # type: ignore[misc]
        for request in finished:
            self._pieces.drop(request.request_id)
        return finished


def joined(outputs: Sequence[Any]) -> Any:
    """The last, with the tokens and log-probabilities of all. Those before it have nothing else."""
    last = outputs[-1]
    if len(outputs) > 1:
        last.new_token_ids = [token for output in outputs for token in output.new_token_ids]
        if found := [output.new_logprobs for output in outputs if output.new_logprobs is not None]:
            ids, log_probs, ranks, _ = zip(*found, strict=True)
            last.new_logprobs = found[0]._make([*map(np.concatenate, (ids, log_probs, ranks)), None])
    return last


def _is_only_tokens(output: Any) -> bool:
    return (
        output.finish_reason is None
        and output.prefill_stats is None
        and output.events is None
        and output.new_prompt_logprobs_tensors is None
        and output.pooling_output is None
        and output.routed_experts is None
        and output.kv_transfer_params is None
        and output.ec_transfer_params is None
    )
