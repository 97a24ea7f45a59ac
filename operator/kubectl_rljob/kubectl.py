"""`kubectl exec` and `port-forward`: every user of a kubectl plugin has kubectl, so its connections to pods are used."""

import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from kubectl_rljob.cluster import Place
from kubectl_rljob.errors import UserError
from kubectl_rljob.session import Session

ABSENT = 100
"""Exit code of a command whose file is not there."""


class NotThere(Exception):
    """The file or directory that a command would have read."""


def interact(session: Session, place: Place, command: Sequence[str]) -> int:
    """Run the command in the pod with our own input and output. Returns its exit code."""
    terminal = ["--stdin", "--tty"] if sys.stdin.isatty() and sys.stdout.isatty() else ["--stdin"]
    with _program():
        return subprocess.run(_exec(session, place, terminal, command)).returncode


def feed(session: Session, place: Place, command: Sequence[str], text: str) -> int:
    """Run the command in the pod with a text as its input, and our own output. Returns its exit code."""
    with _program():
        return subprocess.run(_exec(session, place, ["--stdin"], command), input=text.encode()).returncode


def read(session: Session, place: Place, command: Sequence[str], path: Path) -> Iterator[bytes]:
    """What the command, which gets the path as its last argument, writes to its standard output, as it comes. Raises NotThere, and UserError when
    it fails."""
    script = f'test -e "$0" || exit {ABSENT}; exec "$@" "$0"'
    arguments = _exec(session, place, [], ["sh", "-c", script, str(path), *command])
    with _program(), subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout and process.stderr
        while piece := process.stdout.read(65536):
            yield piece
        problem = process.stderr.read().decode(errors="replace").strip()
    if process.returncode == ABSENT:
        raise NotThere(path)
    if process.returncode:
        raise UserError(f"pod {place.pod} in namespace {place.namespace}: {problem}")


def read_text(session: Session, place: Place, command: Sequence[str], path: Path) -> str:
    """All of what `read` gives. Raises as it does."""
    return b"".join(read(session, place, command, path)).decode(errors="replace")


@contextmanager
def serving(session: Session, place: Place, command: Sequence[str], ready: str) -> Iterator[None]:
    """Run the command in the pod until the context ends, which begins when a line of it holds `ready`. Raises UserError when it ends before."""
    arguments = _exec(session, place, [], command)
    with (
        _program(),
        subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process,
    ):
        assert process.stdout
        try:
            said = []
            for line in process.stdout:
                said.append(line)
                if ready in line:
                    break
            else:
                raise UserError(f"pod {place.pod} in namespace {place.namespace}: {''.join(said[-3:]).strip()}")
            threading.Thread(target=process.stdout.read, daemon=True).start()  # a full pipe would stop it
            yield
        finally:
            process.terminate()


def forward(session: Session, place: Place, here: int, there: int) -> str:
    """Connect a port of this machine to one of the pod, until kubectl ends. Returns what it said last."""
    arguments = [*_kubectl(session, place), "port-forward", place.pod, f"{here}:{there}"]
    with _program():
        ended = subprocess.run(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    return ended.stderr.strip() or "the connection was closed"


def _exec(session: Session, place: Place, flags: Sequence[str], command: Sequence[str]) -> list[str]:
    return [*_kubectl(session, place), "exec", *flags, f"--container={place.container}", place.pod, "--", *command]


def _kubectl(session: Session, place: Place) -> list[str]:
    chosen = {
        "--kubeconfig": session.kubeconfig,
        "--context": session.context,
        "--as": session.user,
        "--namespace": place.namespace,
    }
    return ["kubectl", *(f"{flag}={value}" for flag, value in chosen.items() if value)]


@contextmanager
def _program() -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise UserError("kubectl is not on PATH", "kubectl version --client") from error
