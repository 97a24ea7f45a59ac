"""`run` as a process: real launchers and gloo, ranks and driver without a model."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from api.specs import raw_spec
from ipv6 import WITHOUT_IPV4, needs_namespaces
from rljob_trainer.pod.channel import replace
from trainer.pod.gang import HERE, TIMEOUT, alive, kill, wait_for

pytestmark = pytest.mark.slow

RUN = """
import sys
from pathlib import Path
from rljob_trainer.local.run import run
sys.exit(run(Path(sys.argv[1]), sys.argv[3:], Path(sys.argv[2]) if sys.argv[2] else None, "rank_program", "driver_program"))
"""


class Run:
    """One `run` of a job with two trainers that replays batches, so that it needs no rollouts."""

    def __init__(
        self, directory: Path, within: Sequence[str] = (), temporary: Path | None = None, **changes: Any
    ) -> None:
        """`within`: words in front of the command. `temporary`: its TMPDIR, where it makes its own directory for logs."""
        self.root, self._output = directory / "data" / "run", directory / "output"
        self.root.mkdir(parents=True)
        for read in ("model", "batches"):
            (directory / "data" / read).mkdir()
        (directory / "data" / "train.parquet").touch()
        spec = raw_spec(
            **{
                "train": {"batches": {"replay": "/data/batches"}},
                "trainer": {"device": "cpu", "nodes": 2},
                "rollout": {"replicas": 0, "minReplicas": 0},
                "volumes": [
                    {"name": "data", "mountPath": "/data", "source": {"persistentVolumeClaim": {"claimName": "data"}}}
                ],
                **changes,
            }
        )
        manifest = {"apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": "local"}, "spec": spec}
        (directory / "rljob.yaml").write_text(yaml.safe_dump(manifest))
        paths = [str(HERE), *(p for p in sys.path if p)]
        own = "" if temporary else str(directory / "work")
        mount = f"/data={directory / 'data'}"
        self._command = [*within, sys.executable, "-c", RUN, str(directory / "rljob.yaml"), own, mount]
        self._environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
        self._environment |= {"TMPDIR": str(temporary)} if temporary else {}
        self.process = self.start(self._output)

    def start(self, output: Path) -> subprocess.Popen[bytes]:
        """The same command, also while this run lives."""
        with output.open("wb") as out:
            return subprocess.Popen(self._command, env=self._environment, stdout=out, stderr=subprocess.STDOUT)

    def pid(self, attempt: int, who: int | str) -> int:
        file = self.root / f"pid-{attempt}-{who}"
        wait_for(f"process {who} of attempt {attempt}", lambda: file.exists() and file.read_text())
        return int(file.read_text())

    def says(self, line: str) -> None:
        wait_for(line, lambda: line in self.output())

    def end(self) -> tuple[int, str]:
        """Exit code and the last line."""
        code = self.process.wait(TIMEOUT)
        return code, self.output().splitlines()[-1]

    def output(self) -> str:
        return self._output.read_text()


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[list[Run]]:
    made: list[Run] = []
    yield made
    for run in made:
        run.process.kill()
        run.process.wait()


def test_a_job_survives_a_killed_rank_and_a_killed_launcher_and_succeeds(runs: list[Run], tmp_path: Path) -> None:
    runs.append(run := Run(tmp_path))
    kill(run.pid(1, 1))
    launcher = parent(parent(parent(parent(run.pid(2, 0)))))  # rank, monitor, agent, fork server
    kill(launcher)
    pids = [run.pid(3, who) for who in (0, 1, "driver")]
    run.says("attempt 3: step 3/10; trainers 2/2")
    assert "attempt 2 begins (restart 1 of at most 3), since attempt 1 failed: rank 1: " in run.output()
    assert (
        "attempt 3 begins (restart 2 of at most 3), since attempt 2 failed: LauncherLost: the launcher ended"
        in run.output()
    )
    (run.root / "finish-3").touch()
    assert run.end() == (0, "local: succeeded")
    assert not any(map(alive, pids))


@pytest.mark.extra
def test_gangs_of_other_models_belong_to_the_attempt_and_their_failure_is_named(
    runs: list[Run], tmp_path: Path
) -> None:
    changes: dict[str, Any] = {"trainer": {"device": "cpu"}, "algorithm": {"kl": {"coefficient": 0.1}}}
    runs.append(run := Run(tmp_path, reference={"processesPerNode": 2}, lifecycle={"maxRestarts": 1}, **changes))
    run.says("trainers 1/1, reference 1/1")
    kill(run.pid(1, "reference-1"))
    run.pid(2, "reference-0")
    replace(run.root / "rank-reference-1", "raise")
    code, message = run.end()
    assert code == 1 and "reference rank 1: ValueError: the loss is a banana" in message


def test_a_run_on_one_machine_has_no_spares(runs: list[Run], tmp_path: Path) -> None:
    runs.append(run := Run(tmp_path, trainer={"device": "cpu"}, scheduling={"spareNodes": 1}))
    run.says("; trainers 1/1")
    (run.root / "finish-1").touch()
    assert run.end() == (0, "local: succeeded")


def test_a_second_run_in_the_same_directory_is_refused_and_the_first_one_does_not_notice(
    runs: list[Run], tmp_path: Path
) -> None:
    runs.append(run := Run(tmp_path))
    run.pid(1, 1)
    assert run.start(tmp_path / "second").wait(TIMEOUT) == 1
    (line,) = (tmp_path / "second").read_text().splitlines()
    by = f"of job local, process {run.process.pid} on "
    assert line.startswith(f"spec.checkpoint.path = {run.root}: is where a run {by}")
    (run.root / "finish-1").touch()
    assert run.end() == (0, "local: succeeded")
    assert "attempt 2" not in run.output()


@needs_namespaces
@pytest.mark.extra
def test_ranks_of_two_nodes_meet_on_a_machine_without_ipv4(runs: list[Run], tmp_path: Path) -> None:
    runs.append(run := Run(tmp_path, WITHOUT_IPV4))
    run.pid(1, 1)
    (run.root / "finish-1").touch()
    assert run.end() == (0, "local: succeeded")


@pytest.fixture
def temporary() -> Iterator[Path]:
    """With a short name: sockets are made in it."""
    with tempfile.TemporaryDirectory(prefix="t-") as directory:
        yield Path(directory)


def test_ctrl_c_drains_and_leaves_nothing(runs: list[Run], tmp_path: Path, temporary: Path) -> None:
    runs.append(run := Run(tmp_path, temporary=temporary))
    pids = [run.pid(1, who) for who in (0, 1, "driver")]
    replace(run.root / "rank-0", "litter")
    wait_for("what a library leaves in TMPDIR", lambda: list(temporary.glob("rljob-*/of-a-rank-*")))
    run.process.send_signal(signal.SIGINT)
    assert run.end() == (130, "local: interrupted; what was saved is complete")
    assert "finishing the step and saving it; the same again stops at once" in run.output()
    assert (
        f"to begin again: python -m rljob_trainer run {tmp_path}/rljob.yaml --mount /data={tmp_path}/data"
        in run.output()
    )
    assert not any(map(alive, pids)) and list(temporary.iterdir()) == []


def test_a_mistake_that_only_a_rank_can_see_ends_the_job_with_one_message_and_leaves_the_logs(
    runs: list[Run], tmp_path: Path, temporary: Path
) -> None:
    runs.append(run := Run(tmp_path, temporary=temporary))
    replace(run.root / "rank-0", "configuration")
    assert run.end() == (1, "local: spec.data.train = /nowhere.parquet: does not exist; mount it")
    (logs,) = temporary.iterdir()
    assert (logs / "local-trainer-0.log").is_file() and f"are in {logs}, kept if it fails" in run.output()


def test_broken_rules_are_listed_before_anything_starts(runs: list[Run], tmp_path: Path) -> None:
    runs.append(run := Run(tmp_path, trainer={"device": "cpu", "nodes": 3, "parallelism": {"tensor": 2}}))
    code, _ = run.end()
    assert code == 1
    assert "nodes x processesPerNode = 3 is not divisible" in run.output()
    assert not (tmp_path / "work").exists()


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
