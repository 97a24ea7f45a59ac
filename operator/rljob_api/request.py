"""A one-shot request of a user, carried by an annotation that neither GitOps nor the spec owns: consumed once, by its nonce."""

from typing import Annotated, Literal

from pydantic import Field

from rljob_api.base import Wire
from rljob_api.protocol import Count, Line


class Request(Wire):
    """`kubectl rljob suspend|resume|restart` writes it; the operator copies its nonce into status and never acts on it again."""

    job_uid: Line
    """Of the object it was meant for: a re-created one ignores it."""
    nonce: Annotated[Line, Field(max_length=253)]
    action: Literal["suspend", "resume", "restart"]
    """restart: drain the attempt that runs and open the next one."""
    from_step: Count | None = None
    """With resume: continue from this complete checkpoint, also when the job has finished or failed; 0: start over from the initial weights."""
