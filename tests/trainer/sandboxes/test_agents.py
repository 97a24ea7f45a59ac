"""Agents that have sandboxes: what they run there, and what becomes of a sample whose sandbox fails."""

import asyncio
from pathlib import Path

import pytest

from rljob_trainer.driver import main
from trainer.agents.talker import Talker, first_step, with_agent
from trainer.driver.bench import Bench, Characters
from trainer.sandboxes.pods import PROMPT, address, pods

SCORED = """
from rljob_trainer.agents import SandboxError, Trajectory

async def rollout(prompt, policy, row):
    turn = await policy.generate(list(prompt.tokens))
    async with policy.sandbox("python") as sandbox:
        await sandbox.write("main.py", f"print({turn.text})")
        result = await sandbox.exec(["python3", "main.py"], seconds=30)
        await sandbox.write("left", prompt.text)
    return Trajectory(turn.whole, reward=float(result.stdout), metrics={"code": result.code})
"""


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(main, "load_tokenizer", lambda spec: Characters())
    found = Bench(tmp_path)
    found.spec["rewards"], found.spec["environments"] = [], [{"name": "python", "replicas": 2}]
    return found


async def test_a_local_run_scores_what_the_policy_has_written_in_directories(bench: Bench, tmp_path: Path) -> None:
    bench.local = True
    with_agent(bench.spec, tmp_path, SCORED)
    found, _ = await first_step(bench, Talker("demo-rollout-0"), script=("6*7",))
    assert len(found.samples) == 12 and {s.reward for s in found.samples} == {42.0}
    assert (found.metrics["agent/failed"], found.metrics["reward_metrics/code"]) == (0.0, 0.0)


@pytest.mark.usefixtures("one_token")
async def test_every_trajectory_has_a_pod_of_its_own_which_ends_when_it_is_given_back(
    bench: Bench, tmp_path: Path
) -> None:
    with_agent(bench.spec, tmp_path, SCORED)
    async with pods(tmp_path, 12) as there:
        bench.sandboxes = {"python": [address(port, f"uid-{i}") for i, (_, port) in enumerate(there)]}
        found, _ = await first_step(bench, Talker("demo-rollout-0"), script=("6*7",))
        assert {s.reward for s in found.samples} == {42.0} and found.metrics["agent/failed"] == 0.0
        assert await asyncio.wait_for(asyncio.gather(*(pod.wait() for pod, _ in there)), PROMPT) == [0] * 12
    left = [(tmp_path / f"pod-{i}/work/left").read_text() for i in range(12)]
    assert len(left) == 12 and len(set(left)) == 4, "four prompts, three times each, and no pod was used twice"


FAILS = """
from rljob_trainer.agents import SandboxError, Trajectory

async def rollout(prompt, policy, row):
    turn = await policy.generate(list(prompt.tokens))
    try:
        FAILING
    except SandboxError as error:
        assert "SAID" in str(error), str(error)
        return Trajectory(turn.whole, reward=1.0)
"""


@pytest.mark.parametrize(
    ("failing", "said"),
    [
        ('await policy.sandbox("java").__aenter__()', "spec.environments has no 'java', only python"),
        ('sandbox = await policy.sandbox("python").__aenter__(); await sandbox.read("absent")', "absent"),
        (
            'sandbox = await policy.sandbox("python").__aenter__(); await sandbox.__aexit__(None, None, None); '
            'await sandbox.exec(["true"])',
            "was given back",
        ),
    ],
)
async def test_an_agent_is_told_what_cannot_be_done_and_goes_on(
    failing: str, said: str, bench: Bench, tmp_path: Path
) -> None:
    bench.local, bench.spec["environments"] = True, [{"name": "python", "replicas": 12}]
    with_agent(bench.spec, tmp_path, FAILS.replace("FAILING", failing).replace("SAID", said))
    found, _ = await first_step(bench, Talker("demo-rollout-0"))
    assert {s.reward for s in found.samples} == {1.0}


GIVES_UP = """
import asyncio
from rljob_trainer.agents import SandboxError, Trajectory

async def rollout(prompt, policy, row):
    turn = await policy.generate(list(prompt.tokens))
    async with policy.sandbox("python") as sandbox:
        try:
            await asyncio.wait_for(sandbox.exec(["sleep", "600"], seconds=600), 0.2)
        except TimeoutError:
            pass
        try:
            await sandbox.exec(["true"])
        except SandboxError as error:
            assert "a request that was given up" in str(error), str(error)
    for i in range(10):
        claim = policy.sandbox("python")
        try:
            async with asyncio.timeout(i / 500):
                await claim.__aenter__()
        except TimeoutError:
            continue
        await claim.__aexit__(None, None, None)
    async with policy.sandbox("python") as sandbox:
        result = await sandbox.exec(["echo", "3"], seconds=30)
    return Trajectory(turn.whole, reward=float(result.stdout))
"""


async def test_what_an_agent_gives_up_does_not_go_on(bench: Bench, tmp_path: Path) -> None:
    """A program that would take ten minutes, and claims: if eight stayed, a trajectory could have no other."""
    bench.local, bench.spec["environments"] = True, [{"name": "python", "replicas": 12}]
    with_agent(bench.spec, tmp_path, GIVES_UP, timeoutSeconds=60)
    found, _ = await first_step(bench, Talker("demo-rollout-0"))
    assert {s.reward for s in found.samples} == {3.0} and found.metrics["agent/failed"] == 0.0


@pytest.mark.usefixtures("one_token")
async def test_a_program_that_an_agent_gives_up_ends_with_its_pod(bench: Bench, tmp_path: Path) -> None:
    bench.spec["train"] |= {"promptsPerStep": 1, "samplesPerPrompt": 1}
    code = GIVES_UP.replace("range(10)", "range(0)")
    with_agent(bench.spec, tmp_path, code, timeoutSeconds=60)
    async with pods(tmp_path, 2) as there:
        bench.sandboxes = {"python": [address(port, f"uid-{i}") for i, (_, port) in enumerate(there)]}
        found, _ = await first_step(bench, Talker("demo-rollout-0"))
        assert [s.reward for s in found.samples] == [3.0]
        assert await asyncio.wait_for(asyncio.gather(*(pod.wait() for pod, _ in there)), PROMPT) == [0, 0]


WRONG = """
from rljob_trainer.agents import Trajectory

async def rollout(prompt, policy, row):
    turn = await policy.generate(list(prompt.tokens))
    async with policy.sandbox("python") as sandbox:
        for wrong in (
            lambda: sandbox.exec("ls"), lambda: sandbox.exec([]), lambda: sandbox.exec(["a\\0b"]),
            lambda: sandbox.exec(["ls"], seconds=0), lambda: sandbox.exec(["ls"], seconds=float("nan")),
            lambda: sandbox.exec(["ls"], max_output=2**21), lambda: sandbox.exec(["ls"], stdin=bytes(2**20 + 1)),
            lambda: sandbox.write("a", 3), lambda: sandbox.write("", "a"), lambda: sandbox.read("a\\0b"),
            lambda: sandbox.exec(["a\\ud800"]), lambda: sandbox.read("\\ud800"), lambda: sandbox.write("\\udbff", "a"),
            lambda: sandbox.write("a", "\\ud800"), lambda: sandbox.http("GET", 0), lambda: sandbox.http("GET", True),
            lambda: sandbox.read("a" * 5000),
        ):
            try:
                await wrong()
            except (TypeError, ValueError):
                continue
            raise AssertionError("was not refused")
    return Trajectory(turn.whole, reward=1.0)
"""


async def test_arguments_of_another_kind_are_refused_where_the_agent_is(bench: Bench, tmp_path: Path) -> None:
    bench.local = True
    with_agent(bench.spec, tmp_path, WRONG)
    found, _ = await first_step(bench, Talker("demo-rollout-0"))
    assert {s.reward for s in found.samples} == {1.0} and found.metrics["agent/failed"] == 0.0


ODD = """
from rljob_trainer.agents import SandboxError, Trajectory

async def rollout(prompt, policy, row):
    turn = await policy.generate(list(prompt.tokens))
    odd = "\\ud800"
    async with policy.sandbox("python") as sandbox:
        for method, arguments in (
            ("run", {"command": [odd], "stdin": "", "seconds": 5, "most": 10}), ("read", {"path": odd}), ("read", {}),
            ("write", {"path": odd, "content": ""}), ("write", {"path": "a", "content": "not base64"}), (odd, {}),
            ("run", {"command": ["true"], "stdin": "", "seconds": "5", "most": 10}), ("http", {"method": odd}),
        ):
            try:
                await sandbox._do(method, arguments)
            except SandboxError:
                continue
            raise AssertionError("was not refused")
        assert (await sandbox.exec(["echo", "\\udcff"])).stdout
    return Trajectory(turn.whole, reward=1.0)
"""


@pytest.mark.usefixtures("one_token")
async def test_nothing_that_an_agent_says_of_a_sandbox_ends_more_than_its_sample(bench: Bench, tmp_path: Path) -> None:
    """Its own checks are not the driver's."""
    with_agent(bench.spec, tmp_path, ODD)
    async with pods(tmp_path, 12) as there:
        bench.sandboxes = {"python": [address(port, f"uid-{i}") for i, (_, port) in enumerate(there)]}
        found, _ = await first_step(bench, Talker("demo-rollout-0"))
    assert {s.reward for s in found.samples} == {1.0} and found.metrics["agent/failed"] == 0.0


HANGS = """
from rljob_trainer.agents import Trajectory

async def rollout(prompt, policy, row):
    turn = await policy.generate(list(prompt.tokens))
    async with policy.sandbox("python") as sandbox:
        if prompt.text.startswith("1"):
            await sandbox.exec(["sleep", "600"], seconds=600)
    return Trajectory(turn.whole, reward=1.0)
"""


@pytest.mark.usefixtures("one_token")
async def test_a_program_that_hangs_fails_its_sample_alone_and_its_pod_ends(bench: Bench, tmp_path: Path) -> None:
    bench.spec["train"]["promptsPerStep"] = 12
    with_agent(bench.spec, tmp_path, HANGS, timeoutSeconds=1)
    async with pods(tmp_path, 36) as there:
        bench.sandboxes = {"python": [address(port, f"uid-{i}") for i, (_, port) in enumerate(there)]}
        found, _ = await first_step(bench, Talker("demo-rollout-0"))
        assert found.metrics["agent/failed_timeout"] > 0 and len(found.samples) == 27
        await asyncio.wait_for(asyncio.gather(*(pod.wait() for pod, _ in there)), PROMPT)
