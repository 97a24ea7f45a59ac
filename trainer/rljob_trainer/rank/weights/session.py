"""The coordinator's side of updating one server: its requests. Calls block, so each session runs in a thread of its own."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from rljob_api.protocol import RolloutEndpoint
from rljob_trainer.rank.weights.call import ask
from rljob_trainer.wire.weights import protocol
from rljob_trainer.wire.weights.protocol import Offer, PolicyVersion, ServerWorker
from rljob_trainer.wire.weights.slices import Needs


class UpdateSession:
    """One update: open, then commit when all senders have sent, or abort. Every call has a time limit (protocol.py), and raises ReplicaError or
    AttemptSuperseded."""

    def __init__(
        self, server: RolloutEndpoint, token: str, attempt: int, update: str = "", keeps: bool = False
    ) -> None:
        """`update`: its name, the same at all servers. `keeps`: see Publisher."""
        self.server, self._token, self._attempt, self._update, self._keeps = server, token, attempt, update, keeps

    def open(self, offers: Sequence[Offer]) -> dict[ServerWorker, Needs]:
        """Have the workers receive what these senders send. Returns what each worker needs."""
        uid, senders = self.server.pod_uid, [asdict(offer) for offer in offers]
        body = {"server": uid, "senders": senders, "keep": self._keeps}
        answer = self._call(protocol.OPEN, protocol.OPEN_SECONDS, **body)
        workers = enumerate(zip(answer["doors"], answer["needs"], strict=True))
        return {ServerWorker(uid, worker, *door): Needs.from_json(own) for worker, (door, own) in workers}

    def commit(self, version: PolicyVersion, workers: Sequence[str]) -> float:
        """`workers`: the digest of what each of them got. Returns when the replica serves the new policy: the seconds in which it generated nothing
        for that."""
        body = {"step": version.step, "digest": version.digest, "workers": workers}
        answer = self._call(protocol.COMMIT, protocol.COMMIT_SECONDS, **body)
        return float(answer["paused"])

    def log_probs(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """Log-probabilities of all tokens but the first of each sequence, at temperature 1, under the policy that the replica serves."""
        body = {"model": protocol.SERVED_MODEL, "prompt": sequences, "prompt_logprobs": 0, "max_tokens": 1}
        answer = self._ask(protocol.COMPLETIONS, protocol.PROBE_SECONDS, body)
        choices = sorted(answer["choices"], key=lambda c: c["index"])
        return [
            [found[str(token)]["logprob"] for token, found in zip(tokens[1:], c["prompt_logprobs"][1:], strict=True)]
            for tokens, c in zip(sequences, choices, strict=True)
        ]

    def abort(self) -> None:
        """Abandon the update. The replica continues with its old weights, if it still exists."""
        with suppress(
            RuntimeError
        ):  # it is gone, or serves another attempt: in both cases it has nothing of this update
            self._call(protocol.ABORT, protocol.ABORT_SECONDS)

    def sleep(self) -> None:
        """Have the replica release its memory. It serves nothing until the next update."""
        self._call(protocol.SLEEP, protocol.COMMIT_SECONDS)

    def _call(self, path: str, seconds: float, **body: Any) -> Any:
        return self._ask(path, seconds, {"session": self._update} | body)

    def _ask(self, path: str, seconds: float, body: dict[str, Any]) -> Any:
        return ask(self.server.url, self._token, self._attempt, path, seconds, body)
