"""The example of an environment, images/environment: its process keeps the contract, and to the limits of the programs that it runs."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rljob_trainer.agents.service import Observation
from rljob_trainer.driver import main
from trainer.agents.talker import first_step
from trainer.agents.test_tools import Caller, words, written
from trainer.driver.bench import Bench

SOURCE = Path(__file__).parents[3] / "images/environment"
SECONDS, MEMORY = 1, 128
NOBODY = 65534


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """As in its image: no user's environment, and not root, for whom some limits do not hold."""
    directory = Path(tempfile.mkdtemp())
    directory.chmod(0o755)
    for file in ("server.py", "limited.py"):
        shutil.copy(SOURCE / file, directory)
        (directory / file).chmod(0o644)
    options = ["--host", "127.0.0.1", "--port", "0", "--seconds", str(SECONDS), "--memory-mib", str(MEMORY)]
    user: dict[str, Any] = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
    python = "/usr/bin/python3" if user else sys.executable  # root's may be where nobody can read it
    command = [python, "-I", str(directory / "server.py"), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={"SECRET": "secret"}, **user) as process:
        assert process.stdout
        yield f"http://127.0.0.1:{process.stdout.readline().split()[-1]}"
        process.kill()
    shutil.rmtree(directory)


def ask(url: str, route: str, **body: Any) -> dict[str, Any]:
    request = urllib.request.Request(f"{url}/{route}", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


def begun(url: str, session: str, answer: str = "3") -> str:
    assert ask(url, "reset", session=session, prompt="1+2=", row={"answer": answer}) == {}
    return session


def printed(url: str, program: str) -> str:
    """What the policy reads behind a turn with this program."""
    session, text = begun(url, "limits"), f"Let me see.\n```python\n{program}\n```"
    answer = Observation.model_validate(ask(url, "step", session=session, turn=0, text=text, truncated=False))
    assert not answer.done and answer.messages[0]["role"] == "tool"
    return str(answer.messages[0]["content"])


def test_a_program_is_run_and_an_answer_ends_the_episode(url: str) -> None:
    assert printed(url, "print(sum(range(10)))") == "45\n"
    for text, reward in (("It is\n3 ", 1.0), ("4", 0.0), ("", 0.0)):
        session = begun(url, "answers")
        found = ask(url, "step", session=session, turn=0, text=text, truncated=False)
        assert Observation.model_validate(found).done and found["reward"] == reward
        assert ask(url, "close", session=session) == {}


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("while True: pass", "ended by SIGKILL: the limit is 1 s"),
        ("import time; time.sleep(60)", "ended by SIGKILL: the limit is 1 s"),
        ("import os; os.kill(os.getpid(), 40)", "ended by signal 40"),
        ("bytearray(2**30)", "MemoryError"),
        ("import os; os.fork()", "Resource temporarily unavailable"),
        ("import threading; threading.Thread(target=print).start()", "can't start new thread"),
        ("open('/tmp/kept', 'w').write('x' * 9999)", "File too large"),
        ("while True: print('x' * 999)", "[only the first 4000 bytes]"),
        ("import resource as r; r.setrlimit(r.RLIMIT_AS, (2**40, 2**40))", "not allowed to raise maximum limit"),
        ("print(__import__('os').environ.get('SECRET'))", "None"),
        ("1 +", "SyntaxError"),
    ],
)
def test_a_program_that_goes_too_far_hears_it_and_costs_nobody_else_anything(url: str, program: str, said: str) -> None:
    assert said in printed(url, program)
    assert printed(url, "print('still here')") == "still here\n"


def test_a_session_may_be_begun_again_and_no_turn_is_taken_twice(url: str) -> None:
    session = begun(url, begun(url, "twice"))
    turn = {"session": session, "text": "```python\nprint(1)\n```", "truncated": False}
    assert ask(url, "step", turn=0, **turn)["metrics"] == {"runs": 1}
    assert refused(url, "step", turn=0, **turn) == 409
    assert ask(url, "step", turn=1, **turn)["metrics"] == {"runs": 2}


def refused(url: str, route: str, **body: Any) -> int:
    with pytest.raises(urllib.error.HTTPError) as caught:
        ask(url, route, **body)
    return caught.value.code


def test_what_breaks_the_contract_is_refused(url: str) -> None:
    assert refused(url, "step", session="unknown", turn=0, text="", truncated=False) == 404
    assert refused(url, "steps", session="unknown") == 404
    assert refused(url, "step", turn=0) == 400


async def test_the_driver_plays_episodes_against_it(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "load_tokenizer", lambda spec: words())
    bench = Bench(tmp_path)
    agent = {"environment": {"url": url}, "maxTurns": 4, "maxTokens": 400, "timeoutSeconds": 60}
    bench.spec["rewards"], bench.spec["data"]["chatTemplate"] = [], {"texts": True}
    bench.spec["rollout"] |= {"agent": agent, "sampling": {"maxTokens": 200}}
    found, _ = await first_step(bench, Caller("demo-rollout-0"), script=("```python\nprint(1 + 3)\n```", "4"))
    (between,) = set(written(found, "environment"))
    assert "<tool_response>\n4\n\n</tool_response>" in between
    assert found.metrics["agent/failed"] == 0.0 and found.metrics["reward_metrics/runs"] == 1.0
    prompts = [words().decode(t.prompt_tokens) for t in found.samples]
    terms = [re.search(r"(\d+)\+(\d+)=", prompt).groups() for prompt in prompts]
    assert found.columns.reward.tolist() == [float(int(a) + int(b) == 4) for a, b in terms]
    assert {0.0, 1.0} == set(found.columns.reward)
