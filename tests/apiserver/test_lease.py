"""Two operators of one cluster: one waits for the other."""

import time
from pathlib import Path

import pytest

from apiserver.lab import Operator
from e2e.control_plane import ControlPlane

pytestmark = pytest.mark.slow


def test_an_operator_ends_when_it_is_told_to_while_it_waits_for_the_lease_and_when_it_holds_it(
    plane: ControlPlane, tmp_path: Path
) -> None:
    plane.call("POST", "/api/v1/namespaces", {"metadata": {"name": "lease"}})
    first, second = (Operator(plane.kubeconfig, "lease", tmp_path / f"{name}.log", identity=name) for name in "ab")
    try:
        first.keep_alive()
        told(first, "a holds the lease")
        second.keep_alive()
        told(second, "is held by a")
        assert second.end() == 0
        second.keep_alive()
        assert first.end() == 0
        told(second, "b holds the lease")
    finally:
        first.kill()
        second.kill()


def told(operator: Operator, words: str) -> None:
    """Its log says so."""
    end = time.monotonic() + 180
    while not operator.log.exists() or words not in operator.log.read_text():
        assert time.monotonic() < end, operator.log.read_text()
        time.sleep(0.1)
