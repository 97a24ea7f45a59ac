"""A one-shot request of a user, carried by an annotation that neither GitOps nor the spec owns: consumed once, by its nonce."""

from typing import Literal

from rljob_api.base import Wire


class Request(Wire):
    """`kubectl rljob suspend|resume|restart` writes it; the operator copies its nonce into status and never acts on it again."""

    job_uid: str
    """Of the object it was meant for: a re-created one ignores it."""
    nonce: str
    action: Literal["suspend", "resume", "restart"]
    """restart: drain the attempt that runs and open the next one."""
    from_step: int | None = None
    """With resume: continue from this complete checkpoint, also when the job has finished or failed."""
