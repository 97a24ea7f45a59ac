"""Who gets which GPU of a machine."""

from pathlib import Path

import pytest

from api.specs import raw_spec
from rljob_api.manifest import ManifestError
from rljob_api.spec import RLJobSpec
from rljob_trainer.local.manifest import assign_gpus
from rljob_trainer.machine import gpus


def spec(device: str = "gpu", ranks: int = 2, tensor_parallel: int = 2) -> RLJobSpec:
    trainer, rollout = {"device": device, "processesPerNode": ranks}, {"tensorParallel": tensor_parallel}
    return RLJobSpec.model_validate(raw_spec(trainer=trainer, rollout=rollout))


def test_every_process_gets_gpus_of_its_own() -> None:
    shares = assign_gpus(spec(), {"trainer": ["t-0", "t-1"], "rollout": ["r-0"]}, ["0", "1", "2", "4", "5", "6", "7"])
    assert {pod: share["CUDA_VISIBLE_DEVICES"] for pod, share in shares.items()} == {
        "t-0": "0,1",
        "t-1": "2,4",
        "r-0": "5,6",
    }


def test_a_machine_with_too_few_is_refused_with_the_numbers() -> None:
    with pytest.raises(
        ManifestError, match="needs 4 GPUs, 1 x 2 for trainer and 1 x 2 for rollout; this machine has 3"
    ):
        assign_gpus(spec(), {"trainer": ["t-0"], "rollout": ["r-0"]}, ["0", "1", "2"])


def test_on_cpu_nobody_needs_one() -> None:
    assert assign_gpus(spec("cpu"), {"trainer": ["t-0"], "rollout": ["r-0"]}, []) == {"t-0": {}, "r-0": {}}


def test_only_visible_gpus_are_gpus(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia1", "nvidiactl"):
        (tmp_path / name).touch()
    assert gpus({}, tmp_path) == ["0", "1"]
    assert gpus({"CUDA_VISIBLE_DEVICES": "3,1"}, tmp_path) == ["3", "1"]
    assert gpus({"CUDA_VISIBLE_DEVICES": ""}, tmp_path) == []
