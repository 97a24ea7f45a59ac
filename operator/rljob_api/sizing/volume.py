"""What the checkpoints and exports of a job take on their volume.

A checkpoint has the weights of all that learns, in `model.dtype`, and in float32 the optimizer's part of them and both Adam moments: 14 bytes per
parameter in bfloat16, 16 in float32, 4 less with `momentsDtype: bfloat16`, the layer for multi-token prediction included. With LoRA the adapters
alone learn. Of a draft it has weights and moments in float32. An export is the whole model in `model.dtype`, with what guesses tokens next to it.
"""

from dataclasses import dataclass

from rljob_api.sizing import guessing
from rljob_api.sizing.shape import BYTES, Shape
from rljob_api.sizing.stage import FLOAT, saved_draft
from rljob_api.spec import RLJobSpec
from rljob_api.spec.train import Optimizer


@dataclass(frozen=True, slots=True)
class VolumeSpace:
    """Bytes below `spec.checkpoint.path`, and how many of each there are at most: a new one is complete before an older one is deleted. Of a service
    those of one client's model, whose snapshots are exports of what it learns; how many there are its clients say."""

    checkpoint: float
    checkpoints: int
    export: float
    exports: int

    @property
    def total(self) -> float:
        return self.checkpoint * self.checkpoints + self.export * self.exports


def volume_space(spec: RLJobSpec, shape: Shape) -> VolumeSpace:
    c, width = spec.checkpoint, BYTES[spec.model.dtype]
    of_critic = _saved(spec.critic.optimizer, width) * _scoring(shape) if spec.critic else 0
    written = not spec.evaluation.only and spec.task != "service"
    exported = _learnt(spec, shape) if spec.task == "service" else _policy(spec, shape)
    return VolumeSpace(
        checkpoint=_saved(spec.train.optimizer, width) * _learnt(spec, shape) + of_critic + saved_draft(spec, shape),
        checkpoints=min(c.keep_last + 1, _saves(spec)) if written else 0,
        export=width * exported + guessing.draft_bytes(spec, shape),
        exports=int(c.export_hugging_face) + (c.keep_exports + 1 if c.export_every_steps else 0) if written else 0,
    )


def _learnt(spec: RLJobSpec, shape: Shape) -> float:
    """Parameters of the policy that learn, or of its adapters."""
    lora, tower = spec.adapters, shape.tower
    frozen = tower.parameters() - tower.parameters(tuple(spec.model.freeze)) if tower else 0
    return shape.adapters(lora) * shape.layers if lora else _policy(spec, shape) - frozen


def _saved(adam: Optimizer, width: int) -> int:
    """Bytes of a parameter: its weight, the float32 copy and both moments."""
    return width + FLOAT + adam.moments_bytes


def _policy(spec: RLJobSpec, shape: Shape) -> float:
    """Parameters of the model that is trained, with its layer for multi-token prediction."""
    if spec.task == "rewardModel":
        return _scoring(shape)
    return shape.parameters + guessing.multi_token(spec, shape)


def _scoring(shape: Shape) -> float:
    """Parameters of a critic or a reward model, which has a score in place of an output layer."""
    return shape.parameters - (0 if shape.tied else shape.embedding)


def _saves(spec: RLJobSpec) -> int:
    """How often the job saves, at most."""
    every, steps = spec.checkpoint.every_steps, spec.train.steps
    if not every:
        return 1
    return -(-steps // every) if steps else spec.checkpoint.keep_last + 1
