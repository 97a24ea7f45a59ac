"""The cluster's own scheduler, pod by pod."""

from rljob_operator.schedulers.base import Scheduler


class ClusterScheduler(Scheduler):
    """Adds nothing to pods."""
