"""A request to a rollout server whose answer may be waited for later."""

import http.client
import json
import math
import select
import time
from typing import Any
from urllib.parse import urlsplit

from rljob_trainer.weights import protocol
from rljob_trainer.weights.protocol import AttemptSuperseded


class ReplicaError(RuntimeError):
    """A replica refused, broke or did not answer in time. It does not have the new weights."""


class ReplicaGoneError(ReplicaError):
    """It did not answer, or not to the end."""


class ReplicaRefusedError(ReplicaError):
    """It answered, and not with yes."""


class Call:
    """Sent when made. Not for two threads."""

    def __init__(self, url: str, token: str, attempt: int, path: str, seconds: float, body: dict[str, Any]) -> None:
        """`seconds`: longest wait for the answer, from now. Raises ReplicaGoneError."""
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
        """Whether there is an answer, or never will be."""
        return self._poll is None or bool(self._poll.poll(1000 * seconds)) or time.monotonic() > self._deadline

    def result(self, deadline: float = math.inf) -> Any:
        """The answer's body, once; `deadline`: an earlier one. Raises AttemptSuperseded, ReplicaRefusedError, ReplicaGoneError."""
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
        """Its answer is not asked for any more."""
        self._poll = None  # the descriptor may soon be another's
        self._connection.close()

    def _gone(self, error: Exception) -> ReplicaGoneError:
        self.close()
        return ReplicaGoneError(f"{self._path}: {type(error).__name__}: {error}")
