import time
from dataclasses import replace
from pathlib import Path

import pytest

from rljob_api.spec.model import MegatronReward, PythonReward, RewardSpec
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.rewards.manager import RewardManager
from rljob_trainer.rewards.request import RewardFailed, RewardRequest
from trainer.pod.gang import alive, wait_for

CASE = RewardRequest("1+1=", " 2\n", "2", "s")


def python(tmp_path: Path, code: str, **fields) -> RewardSpec:
    file = tmp_path / "reward.py"
    file.write_text(code)
    return RewardSpec(python=PythonReward(path=str(file)), **fields)


@pytest.fixture
async def judged(tmp_path):
    """Makes started judges and stops them."""
    started = []

    async def start(*rewards: RewardSpec) -> RewardManager:
        manager = RewardManager(rewards)
        started.append(manager)
        await manager.start()
        return manager

    yield start
    for manager in started:
        await manager.stop()


async def test_an_exact_match_strips_response_and_answer(judged):
    manager = await judged(RewardSpec(rule="exactMatch"))
    assert (await manager.score(replace(CASE, data_source="any"))).score == 1.0
    assert (await manager.score(RewardRequest("", "2", " 2\n", "any"))).score == 1.0
    assert (await manager.score(RewardRequest("", "2.", "2", "any"))).score == 0.0


async def test_entries_of_one_data_source_are_weighted_and_summed_and_the_star_takes_the_rest(judged):
    manager = await judged(
        RewardSpec(rule="exactMatch", data_source="sum", weight=2.0),
        RewardSpec(rule="exactMatch", data_source="sum", weight=0.5),
        RewardSpec(rule="exactMatch", weight=3.0),
    )
    assert (await manager.score(replace(CASE, data_source="sum"))).score == 2.5
    assert (await manager.score(replace(CASE, data_source="product"))).score == 3.0


async def test_a_function_of_the_users_sees_prompt_response_and_answer_and_may_print(judged, tmp_path):
    code = "def reward(prompt, response, answer):\n    print('noise')\n    return len(prompt) + (response.strip() == answer)\n"
    assert (await (await judged(python(tmp_path, code))).score(CASE)).score == 5.0


async def test_a_function_may_import_what_lies_beside_it(judged, tmp_path):
    (tmp_path / "rules.py").write_text("VALUE = 7\n")
    manager = await judged(python(tmp_path, "import rules\ndef reward(response): return rules.VALUE\n"))
    assert (await manager.score(CASE)).score == 7


async def test_what_a_reward_raises_is_told_with_its_line(judged, tmp_path):
    manager = await judged(python(tmp_path, "def reward(prompt, response, answer):\n    return int('x' + response)\n"))
    with pytest.raises(
        RewardFailed,
        match=r"reward\(\) in reward.py: ValueError: invalid literal.* \(line 2: return int\('x' \+ response\)\)",
    ):
        await manager.score(CASE)


@pytest.mark.parametrize(
    "value", ["float('nan')", "None", "'much'", "type('Tensor', (), {'__float__': lambda _: 1 / 0})()"]
)
async def test_what_is_not_a_finite_number_is_a_failure(judged, tmp_path, value):
    manager = await judged(python(tmp_path, f"def reward(prompt, response, answer): return {value}\n"))
    with pytest.raises(RewardFailed, match="not a finite number") as caught:
        await manager.score(CASE)
    assert caught.value.kind == "value"


async def test_a_sum_beyond_what_is_trained_on_is_a_failure(judged, tmp_path):
    manager = await judged(python(tmp_path, "def reward(prompt, response, answer): return 1e38\n", weight=10.0))
    with pytest.raises(RewardFailed, match=r"the weighted sum is 1e\+39, beyond 3e\+38") as caught:
        await manager.score(CASE)
    assert caught.value.kind == "value"


async def test_a_call_that_takes_too_long_ends_its_process_and_the_next_gets_another(judged, tmp_path):
    code = "import time\ndef reward(prompt, response, answer):\n    time.sleep(60 if response == 'slow' else 0)\n    return 1\n"
    manager = await judged(python(tmp_path, code, timeout_seconds=2.0))
    began = time.monotonic()
    with pytest.raises(RewardFailed, match=r"longer than 2 s") as caught:
        await manager.score(RewardRequest("", "slow", "", "s"))
    assert time.monotonic() - began < 50 and caught.value.kind == "timeout"
    for _ in range(4):
        again = await manager.score(RewardRequest("", "quick", "", "s"))
        assert again.score == 1


async def test_a_function_that_ends_its_process_is_a_failure_and_the_next_call_works(judged, tmp_path):
    code = "import os\ndef reward(prompt, response, answer):\n    if response == 'die': os._exit(3)\n    return 1\n"
    manager = await judged(python(tmp_path, code))
    for _ in range(3):
        with pytest.raises(RewardFailed, match="ended during the call"):
            await manager.score(RewardRequest("", "die", "", "s"))
    assert (await manager.score(CASE)).score == 1


SLEEPER = "subprocess.run(['sh', '-c', 'echo $$ > {pid}; sleep 60'])"
FORK = "multiprocessing.get_context('fork').Process(target=sleep).start(), time.sleep(60)"


@pytest.mark.parametrize("started", [SLEEPER, FORK])
async def test_what_a_function_has_started_ends_with_its_call(judged, tmp_path, started):
    pid = tmp_path / "pid"
    code = (
        "import multiprocessing, os, pathlib, subprocess, time\n"
        f"def sleep(): pathlib.Path('{pid}').write_text(str(os.getpid())), time.sleep(60)\n"
        f"def reward(prompt, response, answer):\n    if response == 'slow': {started.format(pid=pid)}\n    return 1\n"
    )
    manager = await judged(python(tmp_path, code, timeout_seconds=1.0))
    began = time.monotonic()
    with pytest.raises(RewardFailed, match="longer than 1 s"):
        await manager.score(RewardRequest("", "slow", "", "s"))
    assert time.monotonic() - began < 50
    wait_for("its end", lambda: not alive(int(pid.read_text())))
    assert (await manager.score(CASE)).score == 1


async def test_a_function_that_reads_its_standard_input_gets_nothing_and_the_next_call_is_answered(judged, tmp_path):
    code = "import subprocess\ndef reward(prompt, response, answer): return len(subprocess.run(['cat'], capture_output=True).stdout)\n"
    manager = await judged(python(tmp_path, code))
    assert [(await manager.score(CASE)).score for _ in range(2)] == [0.0, 0.0]


async def test_a_child_that_a_function_forked_cannot_answer_in_its_place(judged, tmp_path):
    code = "import os\ndef reward(prompt, response, answer):\n    os.fork()\n    return float(response)\n"
    manager = await judged(python(tmp_path, code))
    found = [await manager.score(RewardRequest("", str(i), "", "s")) for i in range(40)]
    assert [reward.score for reward in found] == list(range(40))


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("import nothing_of_that_name\n", "No module named"),
        ("def other(p, r, a): return 1\n", r"reward\(\) in reward.py: .* no such function"),
        ("def reward(:\n", "SyntaxError"),
    ],
)
async def test_a_file_that_cannot_be_used_fails_at_the_start(tmp_path, code, text):
    manager = RewardManager([RewardSpec(rule="exactMatch", data_source="x"), python(tmp_path, code)])
    with pytest.raises(ConfigurationError, match=text) as caught:
        await manager.start()
    await manager.stop()
    assert caught.value.field == "spec.rewards[1].python.path"


async def test_a_file_that_is_not_there_fails_at_the_start():
    with pytest.raises(ConfigurationError, match="no such file"):
        await RewardManager([RewardSpec(python=PythonReward(path="/nowhere/reward.py"))]).start()


async def test_entries_of_models_on_the_ranks_are_left_to_them(judged):
    model = RewardSpec(model=MegatronReward(path="/reward-model"), data_source="chat")
    manager = await judged(model, RewardSpec(rule="exactMatch"), RewardSpec(rule="exactMatch", data_source="chat"))
    assert (await manager.score(replace(CASE, data_source="chat"))).score == 1.0
    manager = await judged(model, RewardSpec(rule="exactMatch"))
    assert (await manager.score(replace(CASE, data_source="chat"))).score == 0.0


async def test_infinite_parts_of_both_signs_are_no_reward(judged, tmp_path):
    """Their sum is no number, which is not beyond any limit either."""
    code = "def reward(response): return 1e308\n"
    manager = await judged(python(tmp_path, code, weight=100), python(tmp_path, code, weight=-100))
    with pytest.raises(RewardFailed, match="the weighted sum is nan"):
        await manager.score(CASE)


async def test_what_a_function_prints_is_there_when_its_process_is_killed(judged, tmp_path, monkeypatch, capfd):
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    manager = await judged(python(tmp_path, "def reward(response):\n    print('looked at', response)\n    return 1\n"))
    await manager.score(CASE)
    await manager.stop()
    assert "looked at  2" in capfd.readouterr().err
