"""The process that runs a user's reward function: `python -m rljob_trainer.rewards.worker FILE FUNCTION`.

Speaks JSON lines. First it says {"ready": true} or {"error": text}; then it answers each {"prompt", "response", "answer"} on stdin with
{"value": number}, or with {"error": text, "kind": text}, whose kinds are those of rewards/request.py. The user's own prints go to stderr; what the
function runs or forks reads none of the questions and keeps no hold of the answers.
Imports nothing of ours, so that it starts at once.
"""

import contextlib
import ctypes
import importlib.util
import json
import math
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import IO

Reward = Callable[[str, str, str], float]
PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main() -> None:
    path, function = sys.argv[1:]
    _die_with_parent()
    questions, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    os.register_at_fork(after_in_child=answers.close)  # the driver would wait for the end of a child that outlives us
    try:
        reward = load(path, function)
    except BaseException as error:
        _say(answers, error=explain(error, path))
        return
    _say(answers, ready=True)
    for line in questions:
        _say(answers, **answer(reward, json.loads(line), path))


def load(path: str, function: str) -> Reward:
    """The function of that name in the file; the file's directory is importable, as for a script."""
    sys.path.insert(0, str(Path(path).parent))
    spec = importlib.util.spec_from_file_location("rljob_user_reward", path)
    if spec is None or spec.loader is None:
        raise ImportError("not a Python file: its name has to end in .py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    reward = getattr(module, function, None)
    if not callable(reward):
        raise AttributeError(f"the file has no function {function}(prompt, response, answer)")
    return reward


def answer(reward: Reward, case: dict[str, str], path: str) -> dict[str, object]:
    """One call, with whatever the user's code raises turned into text."""
    try:
        value = reward(case["prompt"], case["response"], case["answer"])
    except BaseException as error:
        return {"error": explain(error, path), "kind": "raised"}
    try:
        number = float(value)
    except Exception:  # an array or a tensor of several elements raises what it likes
        number = math.nan
    if not math.isfinite(number):
        return {"error": f"returned {str(value)[:200]!r}, which is not a finite number", "kind": "value"}
    return {"value": number}


def explain(error: BaseException, path: str) -> str:
    """`ValueError: text (reward.py line 7: the line)`: with the innermost frame in the user's file, if there is one."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == path]
    place = f" ({Path(path).name} line {frames[-1].lineno}: {frames[-1].line})" if frames else ""
    return f"{type(error).__name__}: {error}"[:3000] + place


def _say(stream: IO[str], **message: object) -> None:
    stream.write(json.dumps(message) + "\n")


def _die_with_parent() -> None:
    """A function that never returns must not outlive a driver that was killed. Linux only; elsewhere the closed pipe ends this process."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    main()
