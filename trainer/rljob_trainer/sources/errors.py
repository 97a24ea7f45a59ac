"""Which errors of stores are for the job's author to correct, and how."""

from collections.abc import Iterator
from urllib.parse import urlsplit

from rljob_api.spec.common import Source
from rljob_trainer.failure import ConfigurationError

SECRETS = {
    "hf": "HF_TOKEN",
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
}
"""Variables that clients take credentials from."""
DENIED = ("ACCESS_DENIED", "INVALID_ACCESS_KEY_ID", "SIGNATURE_DOES_NOT_MATCH", "PERMISSION_DENIED", "UNAUTHENTICATED")
"""What the clients of object stores say, whose errors have no status."""


def explained(field: str, source: Source, error: Exception) -> Exception:
    """ConfigurationError, or OSError for what may pass, such as a store that does not answer."""
    chain = list(_chain(error))
    said = " ".join(f"{chain[-1] if isinstance(error, FileNotFoundError) else error}".split())[:500]
    if any(_status(e) in (401, 403) for e in chain) or any(word in said for word in DENIED):
        secret = SECRETS.get(urlsplit(source.source).scheme)
        fix = f"put {secret} into a Secret and name it in spec.envFrom" if secret else "make it readable"
        return ConfigurationError(f"{field}.source", source.source, f"access is refused: {said}", fix)
    if isinstance(chain[-1], FileNotFoundError) or any(_status(e) == 404 for e in chain):
        fix = "correct the address, the revision or the patterns of files"
        return ConfigurationError(f"{field}.source", source.source, f"nothing is found there: {said}", fix)
    return OSError(f"{source.source}: {type(chain[-1]).__name__}: {said}")


def _status(error: BaseException) -> int:
    """Of HTTP, as the clients' exceptions hold it; 0: none."""
    response = getattr(error, "response", None)
    return int(getattr(response, "status_code", 0) or getattr(error, "status", 0) or 0)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
