"""What a job writes and sends, in bytes of a small model, against what plan counts for it."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from api.specs import make_spec
from rljob_api.sizing.network import owned
from rljob_api.sizing.shape import Shape
from rljob_api.sizing.volume import volume_space
from rljob_api.spec import RLJobSpec
from trainer.drafts import make_draft
from trainer.megatron.gang import changed
from trainer.megatron.models import add_multi_token_layer, job, make_model, ranks_of
from trainer.megatron.test_checkpoint import write
from trainer.ranks import run_ranks

pytestmark = pytest.mark.slow

BFLOAT16 = {"model": {"dtype": "bfloat16"}}
FURTHER = {"model": {"multiTokenPrediction": True}}
JOBS: dict[str, tuple[str, dict[str, Any], dict[str, int]]] = {
    "dense": ("qwen3", BFLOAT16, {}),
    "experts": ("qwen3_moe", {}, {"expert": 2}),
    "critic": ("qwen3", {"critic": {}, "algorithm": {"advantage": "gae"}}, {}),
    "reward model": ("qwen3", {"task": "rewardModel"}, {}),
    "adapters": ("qwen3", {"model": {"lora": {"rank": 32}}}, {}),
    "multi-token": ("glm4_moe", FURTHER, {}),
    "multi-token, bfloat16": ("deepseek_v3", {"model": FURTHER["model"] | BFLOAT16["model"]}, {}),
    "multi-token, stages": ("glm4_moe", FURTHER, {"pipeline": 2}),
    "draft": ("qwen3", {}, {"tensor": 2}),
    "draft, bfloat16": ("qwen3", BFLOAT16, {}),
}
"""Kind, changes of the spec, layout."""


class Bytes(NamedTuple):
    """By one rank."""

    checkpoint: int
    export: int
    sent: int


def spec_of(directory: Path, name: str) -> RLJobSpec:
    """Of a job that generates nothing, which some families cannot on CPU."""
    kind, changes, sizes = JOBS[name]
    source = make_model(directory / "model", kind, tied=False, vocabulary=512)
    if "multi-token" in name:
        add_multi_token_layer(source)
    trainer = {"nodes": max([1, *sizes.values()]), "parallelism": sizes}
    if "task" in changes:
        return make_spec(model={"path": str(source), "dtype": "float32"}, **changes)
    spec = changed(job(source, trainer=trainer, batches={"replay": "/batches"}), **changes)
    return changed(spec, rollout={"speculation": drafted(directory, spec.model.dtype)}) if "draft" in name else spec


def drafted(directory: Path, dtype: str) -> dict[str, Any]:
    """A draft of the usual form: as wide as a layer of the policy, which has 64 numbers a token and 128 in its feed-forward part, and in its type."""
    made = make_draft(directory / "draft", 64, 512, [1, 2, 4], inner=128)
    file = made / "model.safetensors"
    tensors = {name: tensor.to(getattr(torch, dtype)) for name, tensor in load_file(file).items()}
    save_file(tensors, file, metadata={"format": "pt"})
    return {"method": "eagle3", "draft": str(made), "tokens": 2, "learningRate": 1e-3}


def written(spec: RLJobSpec, directory: Path) -> Bytes:
    from rljob_trainer.megatron.engine import Engine
    from rljob_trainer.megatron.huggingface import write_draft, write_hugging_face
    from rljob_trainer.rank.tasks import objective_of

    engine = Engine(spec, lambda: None, objective_of(spec))
    write(engine, directory / "saved")
    write_hugging_face(engine, Path(spec.model.path), directory / "out")
    if engine.draft:
        write_draft(engine.draft, directory / "out")
    phases = engine.export_served()
    sent = sum(tensor.nbytes for phase in phases for _, tensor in phase.tensors if phase.sends)
    dist.barrier()
    return Bytes(checkpointed(directory / "saved"), exported(directory / "out"), sent)


def checkpointed(directory: Path) -> int:
    """Bytes of the tensors in a checkpoint. Files hold little else where tensors are not as small as here."""
    kept = FileSystemReader(directory).read_metadata().state_dict_metadata.values()
    return sum(t.size.numel() * t.properties.dtype.itemsize for t in kept if isinstance(t, TensorStorageMetadata))


def exported(directory: Path) -> int:
    tensors = [tensor for file in directory.rglob("*.safetensors") for tensor in load_file(file).values()]
    return sum(tensor.nbytes for tensor in tensors)


@pytest.mark.parametrize("name", JOBS)
def test_checkpoints_exports_and_updates_have_the_bytes_that_plan_counts(
    megatron: None, tmp_path: Path, name: str
) -> None:
    """But for norms and biases."""
    spec = spec_of(tmp_path, name)
    shape = Shape.of(json.loads((tmp_path / "model" / "config.json").read_text()))
    assert shape
    counted, of_ranks = volume_space(spec, shape), owned(spec, shape)
    found = run_ranks(ranks_of(spec), lambda: written(spec, tmp_path))
    assert found[0].checkpoint == pytest.approx(counted.checkpoint, rel=0.01)
    assert found[0].export == pytest.approx(counted.export, rel=0.01)
    sent = {rank: own.sent for rank, own in enumerate(found) if own.sent}
    assert spec.supervised or sent == pytest.approx(of_ranks, rel=0.01)
