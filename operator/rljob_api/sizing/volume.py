"""What the checkpoints of a job take on their volume.

A checkpoint has the weights of all that learns, in `model.dtype`, and in float32 both Adam moments and, below float32, the main weights: 14 bytes per
parameter in bfloat16. With LoRA the adapters alone learn. An export is the whole model in `model.dtype`.
"""

from dataclasses import dataclass

from rljob_api.sizing.shape import BYTES, Shape
from rljob_api.sizing.stage import FLOAT
from rljob_api.spec import RLJobSpec


@dataclass(frozen=True, slots=True)
class VolumeSpace:
    """Bytes below `spec.checkpoint.path`, and how many of each there are at most: a new one is complete before an older one is deleted."""

    checkpoint: float
    checkpoints: int
    export: float
    exports: int

    @property
    def total(self) -> float:
        return self.checkpoint * self.checkpoints + self.export * self.exports


def volume_space(spec: RLJobSpec, shape: Shape) -> VolumeSpace:
    c, width = spec.checkpoint, BYTES[spec.model.dtype]
    states = 2 * FLOAT + (FLOAT if width < FLOAT else 0)
    return VolumeSpace(
        checkpoint=(width + states) * _learnt(spec, shape),
        checkpoints=0 if spec.evaluation.only else min(c.keep_last + 1, _saves(spec)),
        export=width * shape.parameters,
        exports=int(c.export_hugging_face) + (c.keep_exports + 1 if c.export_every_steps else 0),
    )


def _learnt(spec: RLJobSpec, shape: Shape) -> float:
    """Parameters that learn: the policy's or its adapters', and a critic's."""
    lora, tower = spec.adapters, shape.tower
    frozen = tower.parameters() - tower.parameters(tuple(spec.model.freeze)) if tower else 0
    policy = shape.adapters(lora) * shape.layers if lora else shape.parameters - frozen
    return policy + (shape.parameters if spec.critic else 0)


def _saves(spec: RLJobSpec) -> int:
    """How often the job saves, at most."""
    every, steps = spec.checkpoint.every_steps, spec.train.steps
    if not every:
        return 1
    return -(-steps // every) if steps else spec.checkpoint.keep_last + 1
