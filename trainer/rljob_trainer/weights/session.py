"""The trainer's side of one update of one replica. Blocking: each session has a thread of its own."""

import http.client
import json
import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

from rljob_api.protocol import RolloutEndpoint
from rljob_trainer.weights import protocol
from rljob_trainer.weights.bucket import Bucket
from rljob_trainer.weights.protocol import AttemptSuperseded, PolicyVersion
from rljob_trainer.weights.transport import End


class ReplicaError(RuntimeError):
    """A replica refused, broke or did not answer in time. It does not have the new weights."""


class ReplicaGoneError(ReplicaError):
    """It did not answer, or not to the end."""


class ReplicaRefusedError(ReplicaError):
    """It answered, and not with yes."""


class UpdateSession:
    """open, send per bucket, commit; or abort. Every call ends within its time limit (protocol.py) and raises ReplicaError or AttemptSuperseded."""

    def __init__(
        self, endpoint: RolloutEndpoint, token: str, attempt: int, connect: Callable[[], End], end: End | None = None
    ) -> None:
        """`end`: of the replica's last update, whose connection may still stand; `connect` makes a new one."""
        self._url, self._token, self._attempt = urlsplit(endpoint.url), token, attempt
        self._id = secrets.token_hex(8)
        self._connect = connect
        self.end = end

    def open(self) -> None:
        """Pause the replica and connect its workers, unless they still are."""
        if self.end is not None:
            try:
                self._open(self.end, known=True)
                return
            except ReplicaRefusedError:  # another server has taken the replica's place
                self.end.close()
        self.end = end = self._connect()
        with ThreadPoolExecutor(1) as background:  # the request is answered after they have joined
            opened = background.submit(self._open, end, known=False)
            self._carry(lambda: end.accept(opened.done))
            opened.result()

    def send(self, bucket: Bucket) -> None:
        """Returns when the replica has received and verified the bucket."""
        assert self.end
        end = self.end
        transport = self._carry(lambda: end.send(bucket.payload))
        entries = [e.as_json() for e in bucket.entries]
        self._post(protocol.BUCKET, protocol.TRANSFER_SECONDS, entries=entries, transport=transport)
        self._carry(end.wait)

    def commit(self, version: PolicyVersion) -> None:
        """Returns when the replica serves the new policy."""
        self._post(protocol.COMMIT, protocol.COMMIT_SECONDS, step=version.step, digest=version.digest)

    def log_probs(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """Of all tokens but the first of each, at temperature 1, under the policy that the replica serves."""
        body = {"model": protocol.SERVED_MODEL, "prompt": sequences, "prompt_logprobs": 0, "max_tokens": 1}
        choices = sorted(
            self._ask(protocol.COMPLETIONS, protocol.PROBE_SECONDS, body)["choices"], key=lambda c: c["index"]
        )
        return [
            [found[str(token)]["logprob"] for token, found in zip(tokens[1:], c["prompt_logprobs"][1:], strict=True)]
            for tokens, c in zip(sequences, choices, strict=True)
        ]

    def abort(self) -> None:
        """The replica continues with its old weights, if it is still there."""
        try:
            self._post(protocol.ABORT, protocol.ABORT_SECONDS)
        except (ReplicaError, AttemptSuperseded):
            pass  # it is dead or another's: either way it keeps nothing of ours
        finally:
            if self.end:
                self.end.close()

    def _open(self, end: End, known: bool) -> None:
        self._post(protocol.OPEN, protocol.OPEN_SECONDS, address=end.address, port=end.port, known=known)

    def sleep(self) -> None:
        """The replica gives up its memory, and serves nothing until the next update. Raises as the others."""
        self._post(protocol.SLEEP, protocol.COMMIT_SECONDS)

    def _carry[T](self, transfer: Callable[[], T]) -> T:
        try:
            return transfer()
        except RuntimeError as error:
            raise ReplicaError(f"transfer failed: {error}") from error

    def _post(self, path: str, seconds: float, **body: Any) -> None:
        self._ask(path, seconds, {"session": self._id} | body)

    def _ask(self, path: str, seconds: float, body: dict[str, Any]) -> Any:
        headers = {
            "Authorization": f"Bearer {self._token}",
            protocol.ATTEMPT_HEADER: str(self._attempt),
            "Content-Type": "application/json",
        }
        connection = http.client.HTTPConnection(self._url.hostname or "", self._url.port, timeout=seconds)
        try:
            connection.request("POST", path, json.dumps(body), headers)
            response = connection.getresponse()
            status, text = response.status, response.read().decode(errors="replace")
        except (OSError, http.client.HTTPException) as error:
            raise ReplicaGoneError(f"{path}: {type(error).__name__}: {error}") from error
        finally:
            connection.close()
        if status == http.HTTPStatus.CONFLICT:
            raise AttemptSuperseded(self._attempt, int(json.loads(text)["attempt"]))
        if status != http.HTTPStatus.OK:
            raise ReplicaRefusedError(f"{path}: {status}: {text[:500]}")
        return json.loads(text)
