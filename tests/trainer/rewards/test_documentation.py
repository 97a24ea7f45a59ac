"""docs/data-and-rewards.md: what it shows is accepted, and works."""

import asyncio
import json
import re
import sys
from pathlib import Path

import pytest
import yaml

from rljob_api.metrics import METRICS
from rljob_api.rules import validate
from rljob_api.spec.model import CustomRows, DataSpec, HttpReward, PythonReward, RewardSpec
from rljob_trainer.custom_rows.making import RowMaker
from rljob_trainer.data.files import places, read_records
from rljob_trainer.machine import free_port
from rljob_trainer.rewards.manager import RewardManager
from rljob_trainer.rewards.request import Reward, RewardRequest
from trainer.driver.buffer.specs import job

TEXT = (Path(__file__).parents[3] / "docs/data-and-rewards.md").read_text()
SNIPPETS = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
PROGRAMS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


def program(words: str) -> str:
    """The one shown program that has these words."""
    (found,) = (shown for shown in PROGRAMS if words in shown)
    return found


@pytest.mark.parametrize("snippet", SNIPPETS, ids=lambda s: s.split(":")[0])
def test_every_snippet_is_a_valid_part_of_a_spec(snippet):
    sections = yaml.safe_load(snippet)
    base = job(prompts=4, model={"path": "/m"}).dump()
    merged = base | {k: v if k == "rewards" else base.get(k, {}) | v for k, v in sections.items()}
    assert validate(merged, "demo").violations == ()


def test_every_metric_that_the_page_names_exists():
    named = set(re.findall(r"`((?:reward|sampling|data)/\w+)`", TEXT)) - {"data/gsm8k"}
    assert named <= METRICS.keys() and len(named) > 10


def test_the_shown_function_makes_rows(tmp_path):
    (tmp_path / "custom.py").write_text(program("/etc/data/custom.py"))
    rows = [{"score": 0.4}, {"score": 0.9, "turns": ["1+1=", "2"], "origin": "sum"}]
    data = tmp_path / "dialogues.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    custom = CustomRows(path=str(tmp_path / "custom.py"))
    (file,) = RowMaker(DataSpec(train=[str(data)], custom=custom), tmp_path / "made")(places("train", [str(data)]))
    ((place, made),) = read_records(file, ())
    expected = {"prompt": [{"role": "user", "content": "1+1="}], "answer": "2", "data_source": "sum"}
    assert (place.row, made) == (2, expected)


async def test_the_shown_function_that_reports_metrics_judges(tmp_path):
    file = tmp_path / "reward.py"
    file.write_text(program("truncated: bool"))
    manager = RewardManager([RewardSpec(python=PythonReward(path=str(file)))])
    await manager.start()
    try:
        case = RewardRequest("q", "it is 4", "4", "s", truncated=True, row=lambda: {"difficulty": 5})
        assert await manager.score(case) == Reward(0.5, {"correct": 1.0, "hard": 1.0})
    finally:
        await manager.stop()


async def scored(spec: RewardSpec, *responses: str) -> list[float]:
    manager = RewardManager([spec])
    try:
        await manager.start()
        return [(await manager.score(RewardRequest("q", response, "4", "s"))).score for response in responses]
    finally:
        await manager.stop()


async def test_the_shown_function_judges(tmp_path):
    file = tmp_path / "reward.py"
    file.write_text(program("<answer>(.*?)</answer>"))
    spec = RewardSpec(python=PythonReward(path=str(file)))
    assert await scored(spec, "4", "<answer>5</answer>", "<answer> 4 </answer>") == [0.0, 0.1, 1.0]


async def test_a_function_for_trl_judges_by_the_shown_one(tmp_path):
    """As TRL's: lists of a batch, and whatever else as keywords."""
    (tmp_path / "trl_rewards.py").write_text(
        "def accuracy_reward(completions, answer, **kwargs):\n"
        "    return [float(c == a) for c, a in zip(completions, answer, strict=True)]\n"
    )
    file = tmp_path / "reward.py"
    file.write_text(program("from trl_rewards import"))
    assert await scored(RewardSpec(python=PythonReward(path=str(file))), "4", "5") == [1.0, 0.0]


async def test_the_shown_service_judges(tmp_path):
    file, port = tmp_path / "service.py", free_port()
    file.write_text(program("ThreadingHTTPServer(("))
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(file), str(port), stderr=asyncio.subprocess.DEVNULL
    )
    try:
        http = HttpReward(url=f"http://127.0.0.1:{port}/reward", retries=100)  # until it listens
        assert await scored(RewardSpec(http=http), "it is 4", "it is 5") == [1.0, 0.0]
    finally:
        process.kill()
        await process.wait()
