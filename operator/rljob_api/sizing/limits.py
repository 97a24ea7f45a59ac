"""Memory that the pods of a job may use."""

from rljob_api import quantity
from rljob_api.spec.common import Template


def memory_limit(template: Template) -> float:
    """Bytes of limits.memory; 0: there is no limit. Raises ValueError for what is no quantity."""
    limits = template.resources.limits
    return quantity.parse(limits["memory"]) / 1000 if "memory" in limits else 0.0
