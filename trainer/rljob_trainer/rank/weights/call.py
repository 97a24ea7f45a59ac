"""A request to a rollout server."""

import http.client
import json
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


def ask(url: str, token: str, attempt: int, path: str, seconds: float, body: dict[str, Any]) -> Any:
    """POST, and the answer's body. `seconds`: time limit of each read, and of the connection at most. Raises AttemptSuperseded, ReplicaRefusedError,
    ReplicaGoneError."""
    where = urlsplit(url)
    headers = {
        "Authorization": f"Bearer {token}",
        protocol.ATTEMPT_HEADER: str(attempt),
        "Content-Type": "application/json",
    }
    connection = http.client.HTTPConnection(
        where.hostname or "", where.port, timeout=min(seconds, protocol.CONNECT_SECONDS)
    )
    try:
        connection.request("POST", path, json.dumps(body), headers)
        connection.sock.settimeout(seconds)
        response = connection.getresponse()
        status, text = response.status, response.read().decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        raise ReplicaGoneError(f"{path}: {type(error).__name__}: {error}") from error
    finally:
        connection.close()
    if status == http.HTTPStatus.CONFLICT:
        raise AttemptSuperseded(attempt, int(json.loads(text)["attempt"]))
    if status != http.HTTPStatus.OK:
        raise ReplicaRefusedError(f"{path}: {status}: {text[:500]}")
    try:
        return json.loads(text)
    except ValueError as error:  # an answer without a length ends where its server does
        raise ReplicaGoneError(f"{path}: an answer that is cut off: {text[:100]!r}") from error
