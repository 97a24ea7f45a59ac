"""A request of a user, in an annotation that belongs neither to GitOps nor to the spec. It is consumed once, by its nonce."""

from typing import Annotated, Literal

from pydantic import Field

from rljob_api.base import Wire
from rljob_api.protocol import Count, Line


class Request(Wire):
    """`kubectl rljob suspend|resume|restart` writes it; the operator copies its nonce into status and never acts on it again."""

    job_uid: Line
    """UID of the job that it is meant for: one that was created again under the same name ignores it."""
    nonce: Annotated[Line, Field(max_length=253)]
    action: Literal["suspend", "resume", "restart"]
    """restart: drain the attempt that runs and open the next one."""
    from_step: Count | None = None
    """With resume: continue from this complete checkpoint, also when the job has finished or failed; 0: start over from the initial weights."""
