"""The trainer's side of one update of one replica. Blocking: each session has a thread of its own."""

import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from rljob_api.protocol import RolloutEndpoint
from rljob_trainer.weights import protocol
from rljob_trainer.weights.bucket import Bucket
from rljob_trainer.weights.call import Call, ReplicaError, ReplicaRefusedError
from rljob_trainer.weights.messages import Outbox
from rljob_trainer.weights.protocol import PolicyVersion
from rljob_trainer.weights.receiving import Receiving
from rljob_trainer.weights.transport import End


class UpdateSession:
    """open, send per bucket, complete, commit; or abort. Every call ends within its time limit (protocol.py) and raises ReplicaError or
    AttemptSuperseded.

    An update is a request to open, one to receive and one to commit. The second goes out with the first bucket, when all replicas are open, because
    workers wait for a bucket NEXT_SECONDS only; its answer comes when all buckets are staged, or one was not. While an engine receives it answers
    nothing else, so an update that takes long completes that request every RECEIVE_SECONDS and sends another.
    """

    def __init__(
        self, endpoint: RolloutEndpoint, token: str, attempt: int, connect: Callable[[], End], end: End | None = None
    ) -> None:
        """`end`: of the replica's last update, whose connection may still stand; `connect` makes a new one."""
        self._url, self._token, self._attempt = endpoint.url, token, attempt
        self._id = secrets.token_hex(8)
        self._connect = connect
        self.end = end
        self._receiving: Receiving | None = None
        """While there are buckets that the replica has not said to have staged."""

    def open(self) -> None:
        """Pause the replica and connect its workers, unless they still are."""
        self.end = self._joined()

    def send(self, bucket: Bucket) -> None:
        """Returns when the replica has received the bucket and verified the one before, all within TRANSFER_SECONDS."""
        deadline = time.monotonic() + protocol.TRANSFER_SECONDS
        if self._receiving and self._receiving.seconds > protocol.RECEIVE_SECONDS:
            self._complete(self._receiving, deadline)
        self._receiving = self._receiving or self._receive()
        self._receiving.send(bucket, deadline)

    def complete(self) -> None:
        """Returns when the replica has verified all buckets. Without any it was not asked to receive, and will refuse to commit."""
        if self._receiving:
            self._complete(self._receiving, time.monotonic() + protocol.TRANSFER_SECONDS)

    def commit(self, version: PolicyVersion) -> None:
        """Returns when the replica serves the new policy."""
        self._call(protocol.COMMIT, protocol.COMMIT_SECONDS, step=version.step, digest=version.digest).result()

    def log_probs(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """Of all tokens but the first of each, at temperature 1, under the policy that the replica serves."""
        body = {"model": protocol.SERVED_MODEL, "prompt": sequences, "prompt_logprobs": 0, "max_tokens": 1}
        answer = Call(
            self._url, self._token, self._attempt, protocol.COMPLETIONS, protocol.PROBE_SECONDS, body
        ).result()
        choices = sorted(answer["choices"], key=lambda c: c["index"])
        return [
            [found[str(token)]["logprob"] for token, found in zip(tokens[1:], c["prompt_logprobs"][1:], strict=True)]
            for tokens, c in zip(sequences, choices, strict=True)
        ]

    def abort(self) -> None:
        """The replica continues with its old weights, if it is still there."""
        with suppress(RuntimeError):  # it is dead or another's: either way it keeps nothing of ours
            if self._receiving:
                self._receiving.abandon()
            self._call(protocol.ABORT, protocol.ABORT_SECONDS).result()
        if self._receiving:
            self._receiving.close()
        if self.end:
            self.end.close()

    def sleep(self) -> None:
        """The replica gives up its memory, and serves nothing until the next update. Raises as the others."""
        self._call(protocol.SLEEP, protocol.COMMIT_SECONDS).result()

    def _receive(self) -> Receiving:
        assert self.end
        messages = secrets.token_hex(8)
        outbox = Outbox(self.end.rendezvous.store, messages, self.end.rendezvous.workers)
        return Receiving(self.end, outbox, self._call(protocol.RECEIVE, protocol.SILENT_SECONDS, messages=messages))

    def _complete(self, receiving: Receiving, deadline: float) -> None:
        receiving.complete(deadline)
        self._receiving = None

    def _joined(self) -> End:
        """The trainer's end of a connection that all workers are in."""
        if self.end is not None:
            try:
                self._open(self.end, known=True).result()
                return self.end
            except ReplicaRefusedError:  # another server has taken the replica's place
                self.end.close()
        self.end = end = self._connect()
        opened = self._open(end, known=False)  # answered after they have joined
        try:
            end.accept(opened.answered)
        except RuntimeError as error:
            opened.close()
            raise ReplicaError(f"transfer failed: {error}") from error
        opened.result()
        return end

    def _open(self, end: End, known: bool) -> Call:
        return self._call(
            protocol.OPEN, protocol.OPEN_SECONDS, address=end.address, port=end.rendezvous.port, known=known
        )

    def _call(self, path: str, seconds: float, **body: Any) -> Call:
        return Call(self._url, self._token, self._attempt, path, seconds, {"session": self._id} | body)
