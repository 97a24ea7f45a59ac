"""skyrl-gym: an environment is made for every trajectory, from the columns of the row, and steps with the texts of the turns."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import skyrl_gym
from omegaconf import OmegaConf
from skyrl_gym.envs.registration import load_env_creator

from rljob_trainer.agents.api import Policy, Prompt, Trajectory, Turn
from rljob_trainer.agents.environments.threads import in_background, in_thread
from rljob_trainer.agents.episode import Nonsense, Observation, observed, played


def load(environment: str, arguments: dict[str, Any]) -> "SkyrlGym":
    """`environment`: one that is registered, or the class of another as `package.module:Class`. `arguments`: its env_config."""
    if ":" in environment:
        skyrl_gym.register(environment, environment)
    spec = skyrl_gym.spec(environment)
    load_env_creator(spec.entry_point)  # raises what would fail every sample
    return SkyrlGym(environment, OmegaConf.create(arguments))


class SkyrlGym:
    def __init__(self, environment: str, config: Any):
        self._environment, self._config = environment, config

    async def rollout(self, prompt: Prompt, policy: Policy, row: Mapping[str, Any]) -> Trajectory:
        environment = await in_thread(self._made, row)
        try:
            trajectory = await played(policy, prompt.tokens, _Episode(environment, prompt, row))
            metrics = await in_thread(environment.get_metrics)
        finally:
            in_background(environment.close)
        return replace(trajectory, metrics={k: v for k, v in metrics.items() if isinstance(v, int | float)})

    def _made(self, row: Mapping[str, Any]) -> Any:
        return skyrl_gym.make(self._environment, env_config=self._config, extras=dict(row))


class _Episode:
    def __init__(self, environment: Any, prompt: Prompt, row: Mapping[str, Any]):
        self._environment = environment
        column = row.get("prompt")
        self._conversation = column if isinstance(column, list) else [{"role": "user", "content": prompt.text}]

    async def reset(self) -> Observation:
        """With a conversation where the environment has another than the row."""
        before = [dict(message) for message in self._conversation]
        answer = await in_thread(self._environment.init, self._conversation)
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise Nonsense(
                f"answered to init with {type(answer).__name__}, not a conversation and what there is to know"
            )
        return observed({} if answer[0] == before else {"messages": answer[0]}, "init")

    async def step(self, number: int, turn: Turn) -> Observation:
        output = await in_thread(self._environment.step, turn.text)
        if not isinstance(output, Mapping) or not {"observations", "reward", "done"} <= output.keys():
            raise Nonsense(f"answered to step with {str(output)[:200]}, without observations, reward and done")
        answer = {"messages": output["observations"], "reward": output["reward"], "done": output["done"]}
        return observed(answer, "step")
