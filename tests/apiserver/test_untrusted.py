"""Reports that are not to be trusted, all the way: from a pod through API server, operator and API server to the plugin's screen."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from apiserver.lab import TURNS, Lab, lab
from apiserver.proxy import Faults
from e2e.control_plane import ControlPlane
from kubectl_rljob.__main__ import main
from rljob_api import reasons
from rljob_api.protocol import Report
from simulator.hostile import MARKS, REPORT

pytestmark = pytest.mark.slow

IDENTITY = {"protocol": 1, "pod": "demo-trainer-0", "podUid": "u", "bootId": "b"}
RUNNING = {"attempt": 1, "state": "running", "result": None, "failure": None}
SAVED: dict[str, Any] = {
    "step": 3,
    "attempt": 1,
    "path": "/run\x1b[2J\nstep 77777 is saved",
    "digest": "\u202egnp",
    "time": 1.0,
}
WORST: dict[str, Any] = RUNNING | {
    "progress": {
        "phase": "training",
        "startedFrom": 0,
        "step": 3,
        "metrics": {f"made/up_{i}": 1.0 for i in range(12_000)},
        "checkpoints": [SAVED],
        "backend": "\x1b]0;title\x07vllm",
    }
}
"""Well formed, so that all of it is believed."""
BROKEN = {
    "kind": "application",
    "rank": 0,
    "exception": "ValueError\x1b[2J",
    "message": "it\nbroke",
    "lines": ["\x9b2J"],
    "time": 1.0,
}
FAILED: dict[str, Any] = {"attempt": 1, "state": "stopped", "result": "failed", "failure": BROKEN, "progress": None}
VERBS = ("list", "status demo", "metrics demo", "checkpoints demo", "describe-failure demo", "status demo -o yaml")
COUNT = 6
SEEDED = settings(database=None, derandomize=True, phases=[Phase.generate], suppress_health_check=list(HealthCheck))


def drawn() -> list[dict[str, Any]]:
    """Reports of an attempt that runs. Half of them can be read."""
    found: dict[bool, list[dict[str, Any]]] = {True: [], False: []}

    @settings(SEEDED, max_examples=80)
    @given(REPORT.filter(lambda report: report["progress"]))
    def look(report: dict[str, Any]) -> None:
        found[readable(report | RUNNING)].append(report | RUNNING)

    look()
    return spread(found[True]) + spread(found[False])


def spread(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those that are drawn one after the other are alike."""
    assert len(found) >= COUNT
    return found[:: len(found) // COUNT][:COUNT]


def readable(report: dict[str, Any]) -> bool:
    try:
        return bool(Report.model_validate_json(json.dumps(IDENTITY | report)))
    except ValueError:
        return False


async def test_whatever_pods_report_is_stored_and_printed_harmlessly_and_the_job_ends(
    plane: ControlPlane, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(plane.kubeconfig))
    reports = drawn()  # takes longer than a lease may wait for the proxy, which is in our event loop
    async with lab(plane, "untrusted", Faults()) as world:
        await world.submit()
        await world.until(state="Running", step=1, turns=TURNS)
        launcher = world.launcher(0)
        honest = launcher.report
        launcher.report = claims(honest, WORST)  # type: ignore[method-assign]
        await world.turn_until(lambda: holds(world, "vllm"), "what is believed arrives")
        await printed(capfdbinary)
        for report in reports:
            launcher.report = claims(honest, report)  # type: ignore[method-assign]
            for _ in range(3):
                await world.turn()
            stored(world)
            await printed(capfdbinary)
        launcher.report = claims(honest, FAILED)  # type: ignore[method-assign]
        await world.until(attempt=2, turns=TURNS)
        launcher.report = honest  # type: ignore[method-assign]
        await world.turn_until(lambda: holds(world, "ValueError"), "the failure arrives")
        await world.until(state="Running", step=1, attempt=2, turns=TURNS)
        await printed(capfdbinary)
        world.finish = True
        await world.until(state="Succeeded", turns=TURNS)
        log = world.process.log.read_text()
        assert not set(log) & MARKS and "Traceback" not in log and " 422" not in log
        assert world.status.last_failure and world.status.last_failure.reason == reasons.APPLICATION_FAILED


def claims(honest: Callable[[], str], report: dict[str, Any]) -> Callable[[], str]:
    """The same launcher's identity, and else what this report says."""
    return lambda: json.dumps(report | {k: v for k, v in json.loads(honest()).items() if k in IDENTITY})


def stored(world: Lab) -> set[str]:
    """All texts of the status that the API server holds."""
    found = set(leaves(world.job.get("status", {})))
    assert not set("".join(found)) & MARKS
    return found


async def holds(world: Lab, text: str) -> bool:
    return text in stored(world)


def leaves(value: Any) -> list[str]:
    match value:
        case dict():
            return [leaf for key, inner in value.items() for leaf in (key, *leaves(inner))]
        case list():
            return [leaf for inner in value for leaf in leaves(inner)]
    return [value] if isinstance(value, str) else []


async def printed(capture: pytest.CaptureFixture[bytes]) -> None:
    """By every verb that shows what pods reported. In a thread, because the operator's proxy is in our event loop."""
    for verb in VERBS:
        assert await asyncio.to_thread(main, [*verb.split(), "-n", "untrusted"]) in (0, 1, 3), verb
        out, err = capture.readouterr()
        assert not set((out + err).decode()) & MARKS, verb
