"""Specs on GPUs, and the shapes of models that they train."""

from typing import Any

from api.specs import make_spec
from rljob_api.sizing.shape import Shape
from rljob_api.spec import RLJobSpec

GIB = 2**30
QWEN_1_5B = Shape(28, 1536, 12, 2, 128, 8960, 151936, tied=True)
MOE = Shape(4, 64, 4, 2, 16, 0, 1000, experts=8, experts_per_token=2, expert_feed_forward=32)


def gpu_spec(nodes: int = 1, processes: int = 8, **changes: Any) -> RLJobSpec:
    parallelism = changes.pop("parallelism", {})
    trainer = {"device": "gpu", "nodes": nodes, "processesPerNode": processes, "parallelism": parallelism}
    trainer |= changes.pop("trainer", {})
    return make_spec(trainer=trainer, **{"model": {"path": "/data/model", "dtype": "bfloat16"}} | changes)
