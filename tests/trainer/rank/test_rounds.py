"""Servers that take long for one step of an update."""

import threading
from concurrent.futures import wait

import pytest

from rljob_trainer.rank.weights import rounds
from rljob_trainer.rank.weights.rounds import Round

SECONDS = 60.0
"""Many times what anything takes."""


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "WATCH_SECONDS", 0.05)


def until(end: threading.Event) -> None:
    end.wait(SECONDS)


def round_of(*pods: str) -> Round[str]:
    return Round({pod: pod for pod in pods}, lambda _: None, lambda _: None)


def test_all_servers_that_take_long_are_looked_after_at_the_same_time() -> None:
    """Each that is silent takes seconds: one after another, the last of many would be given up after minutes."""
    pods = [f"pod-{i}" for i in range(12)]
    together, end = threading.Barrier(len(pods)), threading.Event()

    def lost(pod: str) -> str:
        together.wait(SECONDS)
        return "silent"

    with round_of(*pods) as updates:
        updates.run(lambda _: until(end), "apply weights", lost)
        assert updates.failed == dict.fromkeys(pods, "silent") and not updates.live
        end.set()


def test_a_server_that_answers_while_one_looks_after_it_is_not_given_up() -> None:
    end = threading.Event()

    def lost(pod: str) -> str:
        end.set()
        wait(updates._running.values(), SECONDS)
        return "silent"

    with round_of("pod-0") as updates:
        updates.run(lambda _: until(end), "apply weights", lost)
        assert not updates.failed and [*updates.live] == ["pod-0"]
