"""spec.podSecurity: user and groups of a job's pods."""

from typing import Annotated, Literal

from pydantic import Field

from rljob_api.base import Model

MAX_ID = 2**31 - 1
"""Largest user or group id of Kubernetes."""
Id = Annotated[int, Field(ge=0, le=MAX_ID)]


class PodSecurity(Model):
    """User and groups of the job's pods, by which file systems decide who may read and write. A field that is not set has the administrator's
    default (`jobs.podSecurity` of the chart)."""

    run_as_user: Id | None = None
    """User id of all processes. 0, root, is refused."""
    run_as_group: Id | None = None
    """Primary group id of all processes; new files belong to it."""
    fs_group: Id | None = None
    """Group id that volumes are given to when they are mounted, where their driver supports it; all processes are in this group."""
    supplemental_groups: Annotated[list[Id], Field(max_length=32)] | None = None
    """Further group ids of all processes, for example of a shared directory on NFS."""
    fs_group_change_policy: Literal["Always", "OnRootMismatch"] | None = None
    """When the files of a volume are given to `fsGroup`: at every mount, or only if the owner of the volume's root directory is wrong."""
