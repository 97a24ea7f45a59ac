"""`kubectl exec`: a terminal in a pod is kubectl's art, and whoever runs a plugin of it has it."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from kubectl_rljob.cluster import Place
from kubectl_rljob.errors import UserError
from kubectl_rljob.session import Session


def interact(session: Session, place: Place, command: Sequence[str]) -> int:
    """Run the command in the pod with our own input and output. Returns its exit code."""
    terminal = ["--stdin", "--tty"] if sys.stdin.isatty() and sys.stdout.isatty() else ["--stdin"]
    with _program():
        return subprocess.run(_exec(session, place, terminal, command)).returncode


def read(session: Session, place: Place, command: Sequence[str]) -> Iterator[bytes]:
    """What the command writes to its standard output, as it comes. Raises UserError when it fails."""
    arguments = _exec(session, place, [], command)
    with _program(), subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout and process.stderr
        while piece := process.stdout.read(65536):
            yield piece
        problem = process.stderr.read().decode(errors="replace").strip()
    if process.returncode:
        raise UserError(f"pod {place.pod} in namespace {place.namespace}: {problem}")


def _exec(session: Session, place: Place, flags: Sequence[str], command: Sequence[str]) -> list[str]:
    chosen = {"--kubeconfig": session.kubeconfig, "--context": session.context, "--namespace": place.namespace}
    here = [f"{flag}={value}" for flag, value in chosen.items() if value]
    return ["kubectl", *here, "exec", *flags, f"--container={place.container}", place.pod, "--", *command]


@contextmanager
def _program() -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise UserError("kubectl is not on PATH", "kubectl version --client") from error
