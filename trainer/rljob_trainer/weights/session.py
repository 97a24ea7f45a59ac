"""The trainer's side of one update of one replica. Blocking: each session has a thread of its own."""

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from rljob_api.protocol import RolloutEndpoint
from rljob_trainer.weights import protocol
from rljob_trainer.weights.bucket import Bucket
from rljob_trainer.weights.call import Call, ReplicaError, ReplicaRefusedError
from rljob_trainer.weights.messages import ABANDONED, COMPLETE, Outbox
from rljob_trainer.weights.protocol import PolicyVersion
from rljob_trainer.weights.transport import End


class UpdateSession:
    """open, send per bucket, complete, commit; or abort. Every call ends within its time limit (protocol.py) and raises ReplicaError or
    AttemptSuperseded.

    Three requests are one update. The second asks the server to receive; its answer comes when all buckets are staged, or one was not. While an
    engine receives it answers nothing else, so an update that takes long asks for that several times.
    """

    def __init__(
        self, endpoint: RolloutEndpoint, token: str, attempt: int, connect: Callable[[], End], end: End | None = None
    ) -> None:
        """`end`: of the replica's last update, whose connection may still stand; `connect` makes a new one."""
        self._url, self._token, self._attempt = endpoint.url, token, attempt
        self._id = secrets.token_hex(8)
        self._connect = connect
        self.end = end
        self._outbox: Outbox | None = None
        self._receiving: Call | None = None
        self._since = 0.0

    def open(self) -> None:
        """Pause the replica, connect its workers, unless they still are, and have them receive."""
        self.end = end = self._joined()
        self._receive(end)

    def send(self, bucket: Bucket) -> None:
        """Returns when the replica has received the bucket and verified the one before."""
        assert self.end and self._outbox and self._receiving
        if time.monotonic() > self._since + protocol.RECEIVE_SECONDS:
            self.complete()
            self._receive(self.end)
        given_up = self._receiving.answered
        with self._with_its_cause(self._outbox, self._receiving):
            transport = self.end.send(bucket.payload)
            self._outbox.post({"entries": [e.as_json() for e in bucket.entries], "transport": transport})
            self.end.wait(given_up)
            self._outbox.confirm(1, given_up)
        if given_up():
            self._receiving.result()
            raise ReplicaRefusedError(f"{protocol.RECEIVE}: ended before the last bucket")

    def complete(self) -> None:
        """Returns when the replica has verified all buckets."""
        assert self._outbox and self._receiving
        with self._with_its_cause(self._outbox, self._receiving):
            self._outbox.end(COMPLETE)
            self._outbox.confirm(0, self._receiving.answered)
        self._receiving.result()
        self._outbox.clear()

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
            if self._outbox:
                self._outbox.end(ABANDONED)
            self._call(protocol.ABORT, protocol.ABORT_SECONDS).result()
        if self._receiving:
            self._receiving.close()
        if self.end:
            self.end.close()

    def sleep(self) -> None:
        """The replica gives up its memory, and serves nothing until the next update. Raises as the others."""
        self._call(protocol.SLEEP, protocol.COMMIT_SECONDS).result()

    def _receive(self, end: End) -> None:
        messages = secrets.token_hex(8)
        self._outbox = Outbox(end.rendezvous.store, messages, end.rendezvous.workers)
        longest = protocol.RECEIVE_SECONDS + protocol.NEXT_SECONDS + protocol.TRANSFER_SECONDS
        self._receiving = self._call(protocol.RECEIVE, longest, messages=messages)
        self._since = time.monotonic()

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

    @contextmanager
    def _with_its_cause(self, outbox: Outbox, receiving: Call) -> Iterator[None]:
        """What a worker says of a failure goes before what this end saw of it."""
        try:
            yield
        except RuntimeError as error:
            if objection := outbox.objection():
                raise ReplicaRefusedError(f"{protocol.RECEIVE}: {objection}") from error
            if receiving.answered(protocol.ABORT_SECONDS):
                receiving.result()
            raise ReplicaError(f"transfer failed: {error}") from error

    def _call(self, path: str, seconds: float, **body: Any) -> Call:
        return Call(self._url, self._token, self._attempt, path, seconds, {"session": self._id} | body)
