"""An HTTP request to a rollout server whose answer is read later."""

import http.client
import json
import math
import select
import time
from typing import Any
from urllib.parse import urlsplit

from rljob_trainer.wire.weights import protocol
from rljob_trainer.wire.weights.protocol import AttemptSuperseded


class ReplicaError(RuntimeError):
    """A replica refused a request, failed, or did not answer in time. It does not have the new weights."""


class ReplicaGoneError(ReplicaError):
    """The replica did not answer, or not completely."""


class ReplicaRefusedError(ReplicaError):
    """The replica answered with an error."""


class Call:
    """A request, which is sent by the constructor. Not thread-safe."""

    def __init__(self, url: str, token: str, attempt: int, path: str, seconds: float, body: dict[str, Any]) -> None:
        """`seconds`: time limit of the answer, from now. Raises ReplicaGoneError."""
        where = urlsplit(url)
        headers = {
            "Authorization": f"Bearer {token}",
            protocol.ATTEMPT_HEADER: str(attempt),
            "Content-Type": "application/json",
        }
        self._path, self._attempt = path, attempt
        self._deadline = time.monotonic() + seconds
        at_once = min(seconds, protocol.CONNECT_SECONDS)
        self._connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=at_once)
        try:
            self._connection.request("POST", path, json.dumps(body), headers)
        except (OSError, http.client.HTTPException) as error:
            raise self._gone(error) from error
        self._poll: select.poll | None = select.poll()
        self._poll.register(self._connection.sock, select.POLLIN)

    def answered(self, seconds: float = 0.0) -> bool:
        """Wait for at most `seconds`. Whether `result` would return, or raise, at once."""
        return self._poll is None or bool(self._poll.poll(1000 * seconds)) or time.monotonic() > self._deadline

    def result(self, deadline: float = math.inf) -> Any:
        """Wait for the answer and return its body; may be called once. `deadline`: an earlier one than that of the request.

        Raises AttemptSuperseded, ReplicaRefusedError, ReplicaGoneError.
        """
        if self._poll is None:
            raise ReplicaGoneError(f"{self._path}: its answer was read, or is not asked for any more")
        self._connection.sock.settimeout(max(0.001, min(deadline, self._deadline) - time.monotonic()))
        try:
            response = self._connection.getresponse()
            status, text = response.status, response.read().decode(errors="replace")
        except (OSError, http.client.HTTPException) as error:
            raise self._gone(error) from error
        finally:
            self.close()
        if status == http.HTTPStatus.CONFLICT:
            raise AttemptSuperseded(self._attempt, int(json.loads(text)["attempt"]))
        if status != http.HTTPStatus.OK:
            raise ReplicaRefusedError(f"{self._path}: {status}: {text[:500]}")
        return json.loads(text)

    def close(self) -> None:
        """Give up the answer."""
        self._poll = None  # the file descriptor may be reused soon
        self._connection.close()

    def _gone(self, error: Exception) -> ReplicaGoneError:
        self.close()
        return ReplicaGoneError(f"{self._path}: {type(error).__name__}: {error}")
