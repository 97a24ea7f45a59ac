"""The trainer's side of updating one replica. Calls block, so each session runs in a thread of its own."""

import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from rljob_api.protocol import RolloutEndpoint
from rljob_trainer.rank.weights.call import Call, ReplicaError, ReplicaRefusedError
from rljob_trainer.rank.weights.receiving import Receiving
from rljob_trainer.wire.weights import protocol
from rljob_trainer.wire.weights.bucket import Bucket
from rljob_trainer.wire.weights.messages import Outbox
from rljob_trainer.wire.weights.protocol import PolicyVersion
from rljob_trainer.wire.weights.transport import End


class UpdateSession:
    """One update: open, send for each bucket, complete, commit; or abort. Every call has a time limit (protocol.py), and raises ReplicaError or
    AttemptSuperseded.

    An update consists of requests to open, to receive and to commit. The receive request is sent with the first bucket, when all replicas are open,
    because workers wait only NEXT_SECONDS for a bucket. It is answered when all buckets are staged, or one has failed. An engine that receives
    answers nothing else, so a long update completes the request after RECEIVE_SECONDS and sends another one.
    """

    def __init__(
        self, endpoint: RolloutEndpoint, token: str, attempt: int, connect: Callable[[], End], end: End | None = None
    ) -> None:
        """`end`: the connection of the replica's last update, if it may still be usable. `connect` makes a new one."""
        self._url, self._token, self._attempt = endpoint.url, token, attempt
        self._id = secrets.token_hex(8)
        self._connect = connect
        self.end = end
        self._receiving: Receiving | None = None
        """The receive request under way, if there is one."""

    def open(self) -> None:
        """Pause the replica, and connect its workers unless they still are."""
        self.end = self._joined()

    def send(self, bucket: Bucket) -> None:
        """Returns when the replica has received the bucket and verified the one before, all within TRANSFER_SECONDS."""
        deadline = time.monotonic() + protocol.TRANSFER_SECONDS
        if self._receiving and self._receiving.seconds > protocol.RECEIVE_SECONDS:
            self._complete(self._receiving, deadline)
        self._receiving = self._receiving or self._receive()
        self._receiving.send(bucket, deadline)

    def complete(self) -> None:
        """Returns when the replica has verified all buckets. A replica without any buckets will refuse to commit."""
        if self._receiving:
            self._complete(self._receiving, time.monotonic() + protocol.TRANSFER_SECONDS)

    def commit(self, version: PolicyVersion) -> None:
        """Returns when the replica serves the new policy."""
        self._call(protocol.COMMIT, protocol.COMMIT_SECONDS, step=version.step, digest=version.digest).result()

    def log_probs(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """Log-probabilities of all tokens but the first of each sequence, at temperature 1, under the policy that the replica serves."""
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
        """Abandon the update. The replica continues with its old weights, if it still exists."""
        with suppress(
            RuntimeError
        ):  # it is gone, or serves another attempt: in both cases it has nothing of this update
            if self._receiving:
                self._receiving.abandon()
            self._call(protocol.ABORT, protocol.ABORT_SECONDS).result()
        if self._receiving:
            self._receiving.close()
        if self.end:
            self.end.close()

    def sleep(self) -> None:
        """Have the replica release its memory. It serves nothing until the next update."""
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
        """Open the replica; returns the trainer's end of a connection that all of its workers have joined."""
        if self.end is not None:
            try:
                self._open(self.end, known=True).result()
                return self.end
            except ReplicaRefusedError:  # the server was restarted
                self.end.close()
        self.end = end = self._connect()
        opened = self._open(end, known=False)  # answered once the workers have joined
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
