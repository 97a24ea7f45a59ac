"""Pods of their own for a user's code that the driver calls: `rollout.agent.workers`, and `workers` of an entry of spec.rewards."""

from typing import Annotated

from pydantic import Field

from rljob_api.base import Model
from rljob_api.spec.common import MOST_PODS, Processes, Quantity, Template


class Workers(Model):
    """Pods of their own, without GPUs, in which a function of yours runs. They are no part of the gang: one that is lost is replaced alone, and what
    ran there begins anew in others."""

    replicas: Annotated[int, Field(ge=1, le=MOST_PODS)] = 1
    """Number of pods. A change takes effect at once, as that of `rollout.replicas`."""
    processes: Processes | None = None
    """Processes of each pod, of which each imports the function; unset: one for each CPU that the pod may use, at most 8. A process of an agent runs
    up to 256 trajectories at a time; one of a reward calls its function once at a time, or up to 64 times if it is async."""
    shm_size: Quantity = "1Gi"
    """Size of /dev/shm in worker pods, in memory."""
    template: Template = Template()
    """Pod settings of the workers, with an image that has what the function needs: Python, and the package rljob_trainer."""
