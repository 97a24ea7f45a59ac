"""How long the driver's event loop is busy with agents in pods, and what they send each other.

    python -m benchmarks.agents [--agents N] [--turns N] [--pods N] [--said N]

As many trajectories as `--agents` are under way at once, in `--pods` worker pods (processes here, over loopback). Every turn gets 64 tokens from a
stub of a server, and `--said` characters from the agent. What counts is the processor's time of the loop's own thread: its longest turn, in which
nobody else is served (goal 0.1 s).
"""

import argparse
import asyncio
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from benchmarks.driver_loop import SAMPLES, TimedLoop, serve, serving, tokenizer
from rljob_api import names
from rljob_api.protocol import Control, GangAddress, Resume
from rljob_api.spec import RLJobSpec
from rljob_trainer.agents.agent import agent_of
from rljob_trainer.agents.python_file import AgentPods, AgentProcess
from rljob_trainer.collection import exempt_from_collection
from rljob_trainer.data.prompts import HeldOutSet, Prompt, PromptSet
from rljob_trainer.driver.buffer.generation import Generator
from rljob_trainer.driver.pod_listener import PodListener
from rljob_trainer.machine import free_port, loopback
from rljob_trainer.processes import tied
from rljob_trainer.rewards.manager import RewardManager
from rljob_trainer.workers import remote
from rljob_trainer.workers.remote import Remote

AGENT = """
from rljob_trainer.agents import Trajectory

async def rollout(prompt, policy, row):
    context = list(prompt.tokens)
    while turn := await policy.generate(context):
        context = turn.whole + await policy.encode("x" * SAID)
    return Trajectory(turn.whole if turn else context)
"""
TOKENS, PROMPT_TOKENS = 64, 512
SENT = Counter[str]()
"""Bytes, by direction."""


class Counted(Remote):
    """Counts what is sent."""

    def write(self, data: bytes) -> None:
        SENT["to pods"] += len(data)
        super().write(data)

    async def line(self) -> bytes:
        found = await super().line()
        SENT["from pods"] += len(found)
        return found


def control(spec: RLJobSpec, port: int) -> Control:
    return Control(
        name="demo",
        namespace="n",
        job_uid="u",
        attempt=1,
        command="run",
        gangs={names.ROLE_TRAINER: GangAddress(address=loopback(), master_port=1)},
        service_port=port,
        resume=Resume(policy="auto"),
        spec=spec,
    )


def start(directory: Path, number: int) -> subprocess.Popen[bytes]:
    """A worker pod."""
    own = {
        names.ENV_POD_NAME: f"demo-worker-{number}",
        names.ENV_POD_UID: str(number),
        names.ENV_ROLLOUT_TOKEN: "token",
    }
    command = tied(
        "rljob_trainer", "worker", names.ROLE_WORKER, "--port", str(free_port()), "--channel", str(directory)
    )
    return subprocess.Popen(command, env=os.environ | own)


async def step(spec: RLJobSpec, servers: list[int], prompts: PromptSet, directory: Path) -> None:
    assert spec.rollout.agent
    (pool, probing), rewards = await serving(servers), RewardManager(spec.rewards)
    listener, port = PodListener(1, "token"), free_port()
    (pods,) = spec.workers.values()
    workers = AgentPods(AgentProcess, 600.0, pods)
    listener.admit(names.ROLE_WORKER, workers)
    await listener.listen(loopback(), port)
    (directory / names.CONTROL_KEY).write_text(control(spec, port).dump_json())
    agent = agent_of(spec.rollout.agent, workers, loopback())
    await agent.start()
    while len(workers._places) < pods.replicas:  # noqa: ASYNC110
        await asyncio.sleep(0.1)
    generator = Generator(spec, tokenizer(), rewards, pool, lambda: None, agent)
    found = await generator.evaluate([HeldOutSet("all", prompts, 1, spec.rollout.sampling)])
    failed = [o.result for group in found["all"] for o in group if isinstance(o.result, Exception)]
    assert not failed, failed[0]
    probing.cancel()
    await agent.stop()
    await listener.close()
    await pool.close()


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.agents")
    parser.add_argument("--agents", type=int, default=1000)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--pods", type=int, default=4)
    parser.add_argument("--said", type=int, default=64)
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp())
    (directory / "agent.py").write_text(AGENT.replace("SAID", str(options.said)))
    agent = {"python": {"path": str(directory / "agent.py")}, "maxTurns": options.turns, "timeoutSeconds": 600}
    agent |= {
        "maxTokens": options.turns * (TOKENS + options.said),
        "workers": {"replicas": options.pods, "processes": 1},
    }
    spec = RLJobSpec.model_validate(
        {
            "model": {"path": "/none"},
            "data": {"train": ["/none"]},
            "rewards": [{"rule": "number"}],
            "train": {"steps": 1},
            "rollout": {"agent": agent, "sampling": {"maxTokens": TOKENS}},
            "checkpoint": {"path": "/none"},
            "image": "none",
        }
    )
    here, there = multiprocessing.Pipe()
    stubs = multiprocessing.Process(target=serve, args=(-(-options.agents // SAMPLES), TOKENS, there), daemon=True)
    stubs.start()
    pods = [start(directory, number) for number in range(options.pods)]
    prompts = PromptSet(Prompt(i, (64,) * PROMPT_TOKENS, "question", "7", "set") for i in range(options.agents))
    loop = TimedLoop()
    exempt_from_collection()
    began = time.monotonic()
    loop.run_until_complete(step(spec, here.recv(), prompts, directory))
    print(
        f"{options.agents:,} agents of {options.turns} turns in {options.pods} pods: the loop was busy for {loop.busy:.1f} s, at most "
        f"{loop.longest:.3f} s at a time, in {time.monotonic() - began:.0f} s; sent "
        + ", ".join(f"{count / 2**20:.1f} MiB {where}" for where, count in SENT.items())
    )
    stubs.terminate()
    for pod in pods:
        pod.terminate()
        pod.wait()


if __name__ == "__main__":
    remote.Remote = Counted  # type: ignore[misc]
    sys.modules["rljob_trainer.workers.workers"].Remote = Counted  # type: ignore[attr-defined]
    main()
