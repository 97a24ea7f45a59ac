"""Files that start processes, pickle, or have the name of a library, in real worker processes."""

from pathlib import Path

import pytest

from rljob_api.spec.model import PythonReward, RewardSpec
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.rewards import manager as manager_module
from rljob_trainer.rewards.request import Reward, RewardRequest
from rljob_trainer.workers import process

CASE = RewardRequest("1+1=", "2", "2", "sum", row=lambda: {"extra_info": {"index": 7}})


@pytest.fixture(autouse=True)
def _one_process(monkeypatch):
    monkeypatch.setattr(process, "MAX_PROCESSES", 1)


def rewarded(file: Path, code: str, **fields: object) -> RewardSpec:
    file.write_text(code)
    return RewardSpec(python=PythonReward(path=str(file), **fields), timeout_seconds=120.0)


async def scored(file: Path, code: str, **fields: object) -> Reward:
    spec = rewarded(file, code, **fields)
    manager = manager_module.RewardManager([spec])
    try:
        await manager.start()
        return await manager.score(CASE)
    finally:
        await manager.stop()


POOL = """
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
{more}

@dataclass
class Case:
    number: int

def judge(case):
    return case.number / 2

def reward(response, answer):
    context = multiprocessing.get_context({method!r})
    {body}
"""
EXECUTOR = "with ProcessPoolExecutor(1, context) as pool: return pool.submit(judge, Case(3)).result()"
BODIES = {
    "executor": EXECUTOR,
    "pool": "with context.Pool(1) as pool: return pool.map(judge, [Case(3)])[0]",
}


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
@pytest.mark.parametrize("body", BODIES)
async def test_a_function_may_start_processes_by_any_method(tmp_path, method, body):
    """verl-project/verl#3150, #2680 and #1293: reward files for its prime manager do."""
    code = POOL.format(method=method, body=BODIES[body], more="")
    assert (await scored(tmp_path / "prime_reward.py", code)).score == 1.5


@pytest.mark.parametrize("name", ["random.py", "math_verify.py", "my-reward.v2.py", "worker.py", "test.py"])
async def test_a_file_may_have_any_name_also_that_of_a_library_that_it_uses(tmp_path, name):
    more = "import random, math_verify\nassert random.random() < 1 and math_verify.parse"
    code = POOL.format(method="spawn", body=EXECUTOR, more=more)
    assert (await scored(tmp_path / name, code)).score == 1.5


async def test_programs_that_a_function_starts_can_import_its_neighbours(tmp_path):
    (tmp_path / "beside.py").write_text("print(0.25)")
    call = "float(subprocess.check_output([sys.executable, '-m', 'beside']))"
    code = f"import subprocess, sys\ndef reward(response):\n    return {call}\n"
    assert (await scored(tmp_path / "starts.py", code)).score == 0.25


async def test_what_it_defines_can_be_pickled(tmp_path):
    code = "import pickle\nclass Kept:\n    score = 0.5\ndef reward(response):\n    return pickle.loads(pickle.dumps(Kept())).score\n"
    assert (await scored(tmp_path / "keeps.py", code)).score == 0.5


LAZY = """
def reward(response):
    return helper(response)

def helper(response):
    {}
    return 1.0

def unused():
    import no_such_package_either
"""


@pytest.mark.parametrize("line", ["import no_such_package.part", "from no_such_package import part"])
async def test_a_package_that_is_missing_is_said_before_anything_is_generated(tmp_path, line):
    with pytest.raises(
        ConfigurationError, match=r"helper\(\) imports no_such_package in line 6, which is not installed"
    ):
        await scored(tmp_path / "lazy.py", LAZY.format(line))


async def test_an_import_that_may_fail_or_is_never_reached_refuses_nothing(tmp_path):
    line = "try:\n        import no_such_package\n    except ImportError:\n        pass"
    assert (await scored(tmp_path / "guarded.py", LAZY.format(line))).score == 1.0


VERL = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    assert extra_info["index"] == 7 and extra_info["num_turns"] is None and extra_info["rollout_reward_scores"] == {}
    return {"score": 1.0}
"""


async def test_a_file_for_verl_finds_in_extra_info_what_verl_adds_to_it(tmp_path):
    assert (await scored(tmp_path / "verl_reward.py", VERL, interface="verl")).score == 1.0


WRAPPED = """
import asyncio, functools

def logged(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)
    return wrapper

class Judge:
    async def __call__(self, response):
        await asyncio.sleep(0)
        return 0.75

judge = Judge()

@logged
async def reward(response):
    return await judge(response)
"""


@pytest.mark.parametrize("function", ["reward", "judge"])
async def test_a_coroutine_is_awaited_however_it_is_made(tmp_path, function):
    assert (await scored(tmp_path / "wrapped.py", WRAPPED, function=function)).score == 0.75
