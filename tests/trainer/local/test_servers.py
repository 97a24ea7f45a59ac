"""Servers of several pods on one machine: when a generation begins and ends."""

from rljob_api.protocol import Failure, Report
from rljob_trainer.local.processes import LocalServer

PODS = ("demo-rollout-0", "demo-rollout-1")


def report(pod: str, boot: str = "b") -> Report:
    return Report(pod=pod, pod_uid="uid", boot_id=boot)


def failed(pod: str, generation: int) -> Report:
    """With what came of that generation."""
    failure = Failure(kind="killed", message="a worker ended", time=float(generation))
    return report(pod).model_copy(update={"failure": failure, "failed_generation": generation})


def reports(**changed: Report | None) -> dict[str, Report | None]:
    """Of both pods; `first` and `second` in place of theirs."""
    usual = {"first": report(PODS[0]), "second": report(PODS[1])} | changed
    return dict(zip(PODS, usual.values(), strict=True))


def begun() -> LocalServer:
    return LocalServer("demo-rollout-0", PODS).advance(reports(), "127.0.0.1", lambda: 1001)


def test_a_generation_begins_when_all_pods_have_reported_and_then_stays() -> None:
    waiting = LocalServer("demo-rollout-0", PODS).advance(reports(second=None), "127.0.0.1", lambda: 1000)
    assert waiting.group is None
    server = waiting.advance(reports(), "127.0.0.1", lambda: 1001)
    assert server.group and (server.group.generation, server.group.master_port) == (1, 1001)
    assert [(part.pod, part.node_rank) for part in server.group.parts] == [(PODS[0], 0), (PODS[1], 1)]
    assert server.advance(reports(), "127.0.0.1", lambda: 1002) == server


def test_a_failure_of_one_pod_begins_the_next_generation_once() -> None:
    first = reports(second=failed(PODS[1], 1))
    following = begun().advance(first, "127.0.0.1", lambda: 1002)
    assert following.group and (following.group.generation, following.group.master_port) == (2, 1002)
    assert following.advance(first, "127.0.0.1", lambda: 1003) == following, "it has begun with what is still reported"
    late = reports(first=failed(PODS[0], 1), second=failed(PODS[1], 1))
    assert following.advance(late, "127.0.0.1", lambda: 1003) == following, "the other part of the first one ended, too"
    again = reports(second=failed(PODS[1], 2))
    assert following.advance(again, "127.0.0.1", lambda: 1003).generation == 3


def test_a_launcher_that_is_gone_ends_the_generation_and_its_successor_begins_the_next() -> None:
    ended = begun().advance(reports(second=None), "127.0.0.1", lambda: 1002)
    assert (ended.group, ended.generation) == (None, 1)
    following = ended.advance(reports(second=report(PODS[1], boot="c")), "127.0.0.1", lambda: 1002)
    assert following.group and following.group.generation == 2
    assert [part.boot_id for part in following.group.parts] == ["b", "c"]
