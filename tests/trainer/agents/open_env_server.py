"""A server of the library OpenEnv, in a process of its own: `python open_env_server.py PORT`. Its environment counts down from the row's number; some
words of the policy make it misbehave."""

import sys
from typing import Any

import uvicorn
from openenv.core.env_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State


class Said(Action):
    message: str


class Heard(Observation):
    prompt: Any = ""


class Countdown(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._left, self._state = 0, State()

    def reset(self, start: int = 2, seed: int | None = None, episode_id: str | None = None, **more: Any) -> Heard:
        self._left = start
        return Heard(prompt=f"[from {start}]")

    def step(self, action: Said, timeout_s: float | None = None, **more: Any) -> Heard:
        if action.message == "raise":
            raise ValueError("out of order")
        if action.message == "flood":
            return Heard(prompt="x" * 2_000_000)
        if action.message == "number":
            return Heard(prompt=7)
        self._left -= 1
        return Heard(prompt=f"[{self._left}]", reward=0.5, done=self._left == 0)

    @property
    def state(self) -> State:
        return self._state


if __name__ == "__main__":
    app = create_app(Countdown, Said, Heard, env_name="countdown", max_concurrent_envs=4)
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
