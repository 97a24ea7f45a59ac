"""A second run in the directory of a living one is refused, and a dead one leaves nothing that refuses the next."""

import errno
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from api.specs import raw_spec
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.local.manifest import load
from rljob_trainer.local.occupied import CHECKPOINTS, LOCK, WORK, occupying
from rljob_trainer.local.run import run
from trainer.local.test_decide import make_inputs, write_manifest

CUT_OFF = "writes, which has not ended; a second one would cut it off"
HOLDS = """
import sys, time
from pathlib import Path
from rljob_trainer.local.occupied import CHECKPOINTS, occupying
with occupying("other", CHECKPOINTS, Path(sys.argv[1])):
    print("holds", flush=True)
    time.sleep(600)
"""


def refusal(directory: Path, field: str = CHECKPOINTS) -> str:
    """Empty: there is none."""
    try:
        with occupying("mine", field, directory):
            return ""
    except ConfigurationError as error:
        return str(error)


def test_a_second_run_is_refused_with_who_has_the_directory_until_that_one_ends(tmp_path: Path) -> None:
    with occupying("first", CHECKPOINTS, tmp_path):
        since = json.loads((tmp_path / LOCK).read_text())["since"]
        assert refusal(tmp_path) == (
            f"spec.checkpoint.path = {tmp_path}: is where a run of job first, process {os.getpid()} on "
            f"{socket.gethostname()} since {since}, {CUT_OFF}; "
            "wait for its end, stop it, or name another spec.checkpoint.path"
        )
        assert refusal(tmp_path, WORK).startswith(f"--work = {tmp_path}: is where a run of job first")
        assert not refusal(tmp_path / "other")
    assert not refusal(tmp_path)


@pytest.mark.parametrize(
    ("said", "by"),
    [
        ("", "of a job"),
        ("{", "of a job"),
        ("[]", "of a job"),
        ('{"pid": 1}', "of a job"),
        ('{"job": "dead", "pid": 99999999, "host": "HERE", "since": "long"}', "of a job"),
        (
            '{"job": "far", "pid": 99999999, "host": "else", "since": "now"}',
            "of job far, process 99999999 on else since now,",
        ),
        (
            '{"job": "\\u001b[31mred", "pid": 1, "host": "else", "since": "n\\now"}',
            "of job red, process 1 on else since n ow,",
        ),
    ],
)
def test_a_file_that_another_run_has_signed_accuses_nobody(tmp_path: Path, said: str, by: str) -> None:
    """It may have been signed by a run before, or on another machine."""
    with occupying("first", CHECKPOINTS, tmp_path):
        (tmp_path / LOCK).write_text(said.replace("HERE", socket.gethostname()))
        assert f": is where a run {by} {CUT_OFF};" in refusal(tmp_path)


def test_a_killed_run_leaves_nothing_that_refuses_the_next(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDS, str(tmp_path)]
    with subprocess.Popen(command, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}, stdout=-1) as other:
        assert other.stdout and other.stdout.readline()
        assert f"of job other, process {other.pid} on" in refusal(tmp_path)
        other.send_signal(signal.SIGKILL)
    assert not refusal(tmp_path)


def test_a_program_that_outlives_its_run_does_not_hold_the_directory(tmp_path: Path) -> None:
    with occupying("first", CHECKPOINTS, tmp_path):
        child = subprocess.Popen(["sleep", "600"], close_fds=False)
    try:
        assert not refusal(tmp_path)
    finally:
        child.kill()
        child.wait()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF])
def test_a_file_system_without_locks_is_said_and_the_run_begins(
    tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def flock(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    assert not refusal(tmp_path)
    warning = f"mine: warning: no lock on {tmp_path} ({os.strerror(number)}): nothing keeps another run out of it\n"
    assert capsys.readouterr().out == warning


def test_a_directory_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    rule = f"--work = {tmp_path}/file/work: cannot be made: Not a directory; leave out --work"
    assert refusal(tmp_path / "file/work", WORK).startswith(rule)


@pytest.mark.parametrize(
    ("held", "field"),
    [("run", CHECKPOINTS), ("work", WORK)],
)
def test_a_run_is_refused_before_it_touches_anything_of_the_other(
    tmp_path: Path, held: str, field: str, capsys: pytest.CaptureFixture[str]
) -> None:
    make_inputs(tmp_path)
    manifest, channel = write_manifest(tmp_path, raw_spec(trainer={"device": "cpu"})), tmp_path / held / "channel"
    channel.mkdir(parents=True)
    with occupying("first", field, tmp_path / held):
        assert run(manifest, [f"/data={tmp_path}"], tmp_path / "work") == 1
        assert load(manifest, [f"/data={tmp_path}"]).name == "demo", "who only reads the job is not refused"
    said = capsys.readouterr()
    assert said.err.startswith(f"{field} = {tmp_path / held}: is where a run of job first,") and not said.out
    assert channel.is_dir() and [file.name for file in (tmp_path / held).iterdir() if file != channel] == [LOCK]
