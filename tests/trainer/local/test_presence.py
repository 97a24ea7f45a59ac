"""What a job reads is looked for on this machine before anything starts."""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from api.specs import raw_spec
from rljob_api.manifest import ManifestError
from rljob_trainer.local.manifest import load

HEAD = {"apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": "local"}}
VOLUMES = [
    {"name": name, "mountPath": path, "source": {"persistentVolumeClaim": {"claimName": "data"}}}
    for name, path in (("data", "/data"), ("code", "/code/mine"))
]


NOBODY = 65534
AGENT = {"python": {"path": "/data/no.py"}, "maxTurns": 2, "maxTokens": 8}


def written(directory: Path, **changes: Any) -> Path:
    file = directory / "m.yaml"
    file.write_text(yaml.safe_dump(HEAD | {"spec": raw_spec(**{"volumes": VOLUMES} | changes)}))
    return file


def said(file: Path, *mounts: str) -> list[str]:
    try:
        load(file, [*mounts])
    except ManifestError as error:
        return str(error).splitlines()
    return []


@pytest.fixture
def public() -> Iterator[Path]:
    """A directory that every user may search, unlike tmp_path."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


@contextmanager
def locking(directory: Path) -> Iterator[None]:
    directory.chmod(0)
    try:
        yield
    finally:
        directory.chmod(0o777)


@contextmanager
def not_root() -> Iterator[None]:
    """Another user if this one is root, who may search everything."""
    user = os.geteuid()
    os.setresuid(user or NOBODY, user or NOBODY, user)
    try:
        yield
    finally:
        os.setresuid(user, user, user)


def test_a_manifest_that_cannot_be_read_is_said_as_kubectl_rljob_says_it(tmp_path: Path) -> None:
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    for name, said in (
        ("none.yaml", "No such file or directory"),
        ("", "Is a directory"),
        ("binary.yaml", "is not UTF-8"),
    ):
        with pytest.raises(ManifestError, match=f"^cannot read {re.escape(str(tmp_path / name))}: {said}$"):
            load(tmp_path / name, [])


def test_all_that_is_missing_is_said_at_once_without_torch_and_without_a_process(tmp_path: Path) -> None:
    rewards = [{"python": {"path": "/code/mine/reward.py"}}]
    written(tmp_path, data={"train": ["/data/a.parquet", "/data/b.parquet"]}, rewards=rewards)
    program = (
        "import sys\nfrom rljob_trainer.__main__ import main\ncode = main(sys.argv[1:])\n"
        "print(code, sorted({'torch', 'transformers', 'vllm'} & {*sys.modules}))"
    )
    command = [sys.executable, "-c", program, "run", "m.yaml", "--work", "work"]
    found = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    data = "on this machine; say where it is with --mount /data=DIR"
    assert found.stderr.splitlines() == [
        f"spec.model.path = /data/model: there is no /data/model {data}",
        f"spec.data.train[0] = /data/a.parquet: there is no /data/a.parquet {data}",
        f"spec.data.train[1] = /data/b.parquet: there is no /data/b.parquet {data}",
        "spec.rewards[0].python.path = /code/mine/reward.py: there is no /code/mine/reward.py on this machine; "
        "say where it is with --mount /code/mine=DIR",
    ]
    assert found.stdout == "1 []\n"
    assert not (tmp_path / "work").exists()


@pytest.mark.parametrize(
    "slip",
    [
        {"train": {"stepz": 1}},
        {"evaluation": {"everySteps": "often"}},
        {"checkpoint": {"pth": "/data/run"}},
        {"rollout": 3},
    ],
)
def test_a_slip_hides_no_missing_file(tmp_path: Path, slip: dict[str, Any]) -> None:
    (tmp_path / "model").mkdir()
    file = written(tmp_path, data={"train": ["/data/train.parquet"], "validation": ["/data/held-out.parquet"]}, **slip)
    (section,) = slip
    lines = said(file, f"/data={tmp_path}")
    assert [line.split(" = ")[0] for line in lines if f": there is no {tmp_path}" in line] == [
        "spec.data.train[0]",
        "spec.data.validation[0]",
    ]
    assert any(line.startswith(f"spec.{section}") for line in lines)


def test_what_is_not_below_its_mount_is_said_with_its_place_here(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    file = written(tmp_path, trainer={"device": "cpu", "nodes": 3, "parallelism": {"tensor": 2}})
    layout, data = said(file, f"/data={tmp_path}")
    assert "nodes x processesPerNode = 3 is not divisible" in layout, "broken rules are in the same message"
    assert data == (
        f"spec.data.train[0] = /data/train.parquet: there is no {tmp_path}/train.parquet on this machine; "
        "put it there, or name another directory with --mount /data=DIR"
    )


def test_what_a_mounted_volume_lacks_is_said_of_the_volume_as_in_a_pod(tmp_path: Path) -> None:
    """Whoever runs `kubectl rljob try` has no --mount. /dev/pts is a mount on Linux."""
    pts = {"name": "pts", "mountPath": "/dev/pts", "source": {"persistentVolumeClaim": {"claimName": "data"}}}
    (tmp_path / "model").mkdir()
    (line,) = said(
        written(tmp_path, data={"train": ["/dev/pts/a.parquet"]}, volumes=[*VOLUMES, pts]), f"/data={tmp_path}"
    )
    assert line == (
        "spec.data.train[0] = /dev/pts/a.parquet: there is no /dev/pts/a.parquet on the volume at /dev/pts; correct the path, or put it there"
    )


def test_a_checkpoint_directory_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "train.parquet").touch()
    (tmp_path / "run").touch()
    (line,) = said(written(tmp_path), f"/data={tmp_path}")
    assert line.startswith(f"spec.checkpoint.path = /data/run: {tmp_path}/run cannot be written on this machine; put")


@pytest.mark.parametrize(
    "changes",
    [
        {"model": {"source": "hf://org/model@main"}},
        {"task": "sft", "data": {"validation": ["/data/no.parquet"]}},
        {"train": {"batches": {"replay": "/data/model"}}, "rollout": {"agent": AGENT}},
        {"task": "pretrain", "data": {"train": ["/data/indexed"]}},
    ],
)
def test_what_a_run_does_not_read_or_fetches_itself_need_not_be_there(tmp_path: Path, changes: dict[str, Any]) -> None:
    if "source" not in changes.get("model", {}):
        (tmp_path / "model").mkdir()
    for name in ("train.parquet", "indexed.idx", "indexed.bin"):
        (tmp_path / name).touch()
    assert said(written(tmp_path, **changes), f"/data={tmp_path}") == []


def test_an_agent_that_a_run_reads_must_be_there(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "train.parquet").touch()
    (line,) = said(written(tmp_path, rollout={"agent": AGENT}), f"/data={tmp_path}")
    assert line.startswith(
        f"spec.rollout.agent.python.path = /data/no.py: there is no {tmp_path}/no.py on this machine"
    )


def test_a_wrong_mount_is_said_with_all_other_mistakes_and_no_file_is_called_missing(tmp_path: Path) -> None:
    file = written(tmp_path, trainer={"device": "cpu", "nodes": 3, "parallelism": {"tensor": 2}})
    mount, other, layout = said(file, "/data=/nowhere", f"data={tmp_path}")
    rule = "must be /PATH=DIR with an absolute path and a directory that exists"
    assert (mount, other) == (f"--mount /data=/nowhere: {rule}", f"--mount data={tmp_path}: {rule}")
    assert "nodes x processesPerNode = 3 is not divisible" in layout


@pytest.mark.parametrize(
    ("locked", "lines"),
    [
        ("", ["--mount /data={here}: must be /PATH=DIR with an absolute path and a directory that exists"]),
        (
            "here",
            [
                "spec.model.path = /data/model: {here} cannot be searched on this machine",
                "spec.data.train[0] = /data/train.parquet: {here} cannot be searched on this machine",
                "spec.checkpoint.path = /data/run: {here}/run cannot be written on this machine",
            ],
        ),
        ("here/model", ["spec.model.path = /data/model: {here}/model cannot be read on this machine"]),
        (
            "here/model/config.json",
            ["spec.model.path = {here}/model: {here}/model/config.json cannot be read on this machine"],
        ),
        (
            "here/train.parquet",
            ["spec.data.train[0] = /data/train.parquet: {here}/train.parquet cannot be read on this machine"],
        ),
    ],
)
def test_what_this_user_may_not_search_or_read_is_said(public: Path, locked: str, lines: list[str]) -> None:
    here = public / "outer/here"
    (here / "model").mkdir(parents=True)
    (here / "train.parquet").touch()
    (here / "model/config.json").write_text("{}")
    here.chmod(0o777)
    file = written(public)
    with locking(public / "outer" / locked), not_root():
        found = said(file, f"/data={here}")
    assert [re.split(": Permission denied|; ", line)[0] for line in found] == [line.format(here=here) for line in lines]


def test_a_run_that_resumes_does_not_need_what_it_began_from(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "train.parquet").touch()
    began = {"resumeFrom": "/data/other/global_step_3"}
    file = written(tmp_path, model={"megatronCheckpoint": "/data/other/global_step_2"}, checkpoint=began)
    assert [line.split(" = ")[0] for line in said(file, f"/data={tmp_path}")] == [
        "spec.model.megatronCheckpoint",
        "spec.checkpoint.resumeFrom",
    ]
    (tmp_path / "run").mkdir()
    assert not said(file, f"/data={tmp_path}")
