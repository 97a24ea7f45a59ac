"""Agents that run what the policy has written in sandboxes: in real processes, asked by the whole driver, with real helpers and directories."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest

from rljob_api.protocol import SandboxAddress
from rljob_api.spec.agent import EnvironmentPool
from rljob_trainer.agents import claims
from rljob_trainer.agents.claims import Claims, Sandboxes
from rljob_trainer.agents.session import OwnTime
from rljob_trainer.driver import main
from rljob_trainer.machine import free_port
from rljob_trainer.sandboxes.sandbox import SandboxError
from trainer.agents.talker import Talker, first_step, with_agent
from trainer.agents.test_traffic import Between
from trainer.driver.bench import Bench, Characters
from trainer.sandboxes.helpers import TOKEN, UID, listens, running

PROMPT = 20.0
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


def address(port: int, uid: str = UID) -> SandboxAddress:
    return SandboxAddress(pod_uid=uid, address=f"127.0.0.1:{port}")


@asynccontextmanager
async def pods(root: Path, count: int) -> AsyncIterator[list[tuple[asyncio.subprocess.Process, int]]]:
    """Helpers of as many sandboxes. In these tests they have one token: uids differ, and `token_of` is replaced."""
    async with AsyncExitStack() as stack:
        found = []
        for i in range(count):
            (root / f"pod-{i}").mkdir()
            found.append(await stack.enter_async_context(running(root / f"pod-{i}")))
        yield found


@pytest.fixture
def one_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "token_of", lambda secret, uid: TOKEN)


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


def of(replicas: int = 1, claim_seconds: int = 600) -> Sandboxes:
    return Sandboxes([EnvironmentPool(name="python", replicas=replicas, claim_seconds=claim_seconds)], "secret")


async def claim(sandboxes: Sandboxes, of: Claims) -> int:
    return await asyncio.wait_for(of.claim("python"), PROMPT)


@pytest.mark.usefixtures("one_token")
async def test_a_pod_is_handed_out_once_however_old_the_operators_word_is(tmp_path: Path) -> None:
    async with pods(tmp_path, 2) as ((first, port), (_, other)):
        sandboxes = of()
        sandboxes.follow({"python": [address(port)]})
        async with sandboxes.claims() as mine, sandboxes.claims() as others:
            number = await claim(sandboxes, mine)
            waiting = asyncio.create_task(others.claim("python"))
            for _ in range(3):
                sandboxes.follow({"python": [address(port)]})
                await asyncio.sleep(0)
            await mine.give_back(number)
            sandboxes.follow({"python": [address(port)]})
            await asyncio.wait_for(first.wait(), PROMPT)
            assert not waiting.done() and not sandboxes.ready
            sandboxes.follow({"python": [address(other, "uid-2")]})
            assert await asyncio.wait_for(waiting, PROMPT) == 0 and sandboxes.ready


@pytest.mark.usefixtures("one_token")
async def test_one_that_does_not_answer_is_passed_over_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "RETRY_SECONDS", 0.1)
    sandboxes = of()
    async with sandboxes.claims() as mine:
        port = free_port()
        sandboxes.follow({"python": [address(port)]})
        waiting = asyncio.create_task(mine.claim("python"))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        async with running(tmp_path, port, wanted=True):
            assert await asyncio.wait_for(waiting, PROMPT) == 0


@pytest.mark.usefixtures("one_token")
async def test_a_sandbox_that_is_kept_too_long_is_taken_away(tmp_path: Path) -> None:
    async with pods(tmp_path, 1) as ((pod, port),):
        sandboxes = of(claim_seconds=1)
        sandboxes.follow({"python": [address(port)]})
        async with sandboxes.claims() as mine:
            number = await claim(sandboxes, mine)
            await asyncio.wait_for(pod.wait(), PROMPT)
            with pytest.raises(SandboxError, match="taken away after spec.environments"):
                mine.of(number)


@pytest.mark.usefixtures("one_token")
async def test_a_claim_that_is_given_up_while_it_waits_takes_nothing(tmp_path: Path) -> None:
    async with pods(tmp_path, 1) as ((_, port),):
        sandboxes = of()
        async with sandboxes.claims() as mine:
            waiting = asyncio.create_task(mine.claim("python"))
            await asyncio.sleep(0)
            waiting.cancel()
            sandboxes.follow({"python": [address(port)]})
            await asyncio.wait([waiting])
            assert listens(port) and await claim(sandboxes, mine) == 0


async def test_a_claim_that_is_given_up_while_its_pod_does_not_answer_leaves_the_pod_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "RETRY_SECONDS", 0.1)
    monkeypatch.setattr(claims, "token_of", lambda secret, uid: TOKEN)
    arrived, left = asyncio.Event(), asyncio.Event()

    async def is_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        arrived.set()
        with suppress(ConnectionError):
            await reader.read()
        left.set()
        writer.close()

    port, sandboxes = free_port(), of()
    sandboxes.follow({"python": [address(port)]})
    async with sandboxes.claims() as mine:
        server = await asyncio.start_server(is_silent, "127.0.0.1", port)
        waiting = asyncio.create_task(mine.claim("python"))
        await asyncio.wait_for(arrived.wait(), PROMPT)
        waiting.cancel()
        await asyncio.wait([waiting])
        await asyncio.wait_for(left.wait(), PROMPT)
        server.close()
        await server.wait_closed()
        async with running(tmp_path, port):
            assert await claim(sandboxes, mine) == 0


async def test_one_that_is_given_back_by_a_task_that_is_cancelled_is_free_again() -> None:
    sandboxes = of()
    sandboxes.follow(None)
    async with sandboxes.claims() as mine:
        number = await claim(sandboxes, mine)
        await mine.of(number).run(["sh", "-c", "sleep 600 >&- 2>&- <&- &"], 10, b"", 10)
        returning = asyncio.create_task(mine.give_back(number))
        await asyncio.sleep(0)
        returning.cancel()
        await asyncio.wait([returning])
    async with sandboxes.claims() as another:
        await claim(sandboxes, another)


async def test_a_trajectory_that_has_all_of_an_environment_is_refused_another_and_waits_for_nobody() -> None:
    sandboxes = of(replicas=2)
    sandboxes.follow(None)
    async with sandboxes.claims() as mine:
        number, _ = await claim(sandboxes, mine), await claim(sandboxes, mine)
        with pytest.raises(SandboxError, match="environment python has replicas: 2, and this trajectory has claimed"):
            await claim(sandboxes, mine)
        await mine.give_back(number)
        await claim(sandboxes, mine)


async def test_waiting_for_the_first_one_is_not_the_agents_time_and_waiting_for_another_one_is() -> None:
    """Agents that wait for one another would lose all that they have, after claimSeconds."""
    sandboxes, session = of(replicas=2), Between(1).session
    session.own_time = OwnTime(0.5)
    sandboxes.follow(None)
    ask = {"environment": "python"}
    async with sandboxes.claims() as others, sandboxes.claims() as session.claims:
        numbers = [await claim(sandboxes, others), await claim(sandboxes, others)]
        with pytest.raises(TimeoutError):
            async with session.own_time.limited():
                first = asyncio.create_task(session.answer("claim", ask))
                await asyncio.wait({first}, timeout=1)
                assert not first.done()
                await others.give_back(numbers[0])
                await asyncio.wait_for(first, PROMPT)
                await asyncio.wait_for(session.answer("claim", ask), PROMPT)
        assert session.own_time.is_over


async def test_a_trajectory_has_a_bounded_number_at_a_time() -> None:
    sandboxes = of(replicas=64)
    sandboxes.follow(None)
    async with sandboxes.claims() as mine:
        numbers = [await claim(sandboxes, mine) for _ in range(claims.MOST_CLAIMS)]
        with pytest.raises(SandboxError, match="at a time: give one back"):
            await claim(sandboxes, mine)
        await mine.give_back(numbers[0])
        await claim(sandboxes, mine)
