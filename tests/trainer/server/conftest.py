"""Real vLLM servers on CPU, forked from one process that has imported vLLM."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rljob_api import names
from rljob_api.protocol import RolloutEndpoint
from rljob_api.server_group import ServerGroup, ServerPart
from rljob_api.spec import RLJobSpec
from rljob_trainer.machine import free_port
from rljob_trainer.pod.arguments import server_arguments, server_environment
from rljob_trainer.pod.part import PodPart
from rljob_trainer.pod.supervisor import with_targets_of_its_model
from rljob_trainer.wire.weights.drafts import LEARNS
from trainer.server import models
from trainer.server.front import Caller
from trainer.server.servers import TOKEN, Server, spec

ONE_PROCESS = {one: {"VLLM_ENABLE_V1_MULTIPROCESSING": str(int(not one))} for one in (True, False)}
"""The fork server's environment is that of a server without tensor parallelism."""


@pytest.fixture(scope="session")
def fork_server() -> Iterator[subprocess.Popen[str]]:
    environment = server_environment(spec(Path("/model")), 1, os.environ) | {
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)
    }
    command = [sys.executable, str(Path(__file__).with_name("fork_server.py"))]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin and process.stdout
        while process.stdout.readline().strip() != "ready":
            assert process.poll() is None, "the fork server did not start"
        yield process
        process.stdin.close()
        process.wait(600)


@pytest.fixture(scope="module")
def start(
    fork_server: subprocess.Popen[str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Server]]:
    """`start(model)`: a server that answers /health, of `job` if there is one, in as many pods as that says. It is killed after the module."""
    servers: list[Server] = []

    def fork(served: RLJobSpec, attempt: int, part: PodPart | None = None) -> Server:
        assert fork_server.stdin and fork_server.stdout
        port, log = free_port(), tmp_path_factory.mktemp("server") / "log"
        environment = {names.ENV_ROLLOUT_TOKEN: TOKEN, names.ENV_ATTEMPT: str(attempt)}
        environment |= {LEARNS: "1"} if served.rollout.speculation and served.rollout.speculation.learns else {}
        environment |= ONE_PROCESS[served.rollout.gpus == 1] | (part.environment if part else {})
        order = {
            "arguments": server_arguments(with_targets_of_its_model(served), port, part),
            "environment": environment,
            "log": str(log),
        }
        fork_server.stdin.write(json.dumps(order) + "\n")
        fork_server.stdin.flush()
        pid = int(fork_server.stdout.readline())
        pod = f"rollout-{len(servers)}"
        servers.append(
            Server(RolloutEndpoint(pod=pod, pod_uid=f"uid-{pod}-{pid}", url=f"http://127.0.0.1:{port}"), pid, log)
        )
        return servers[-1]

    def begin(
        model: Path,
        attempt: int = 0,
        tensor_parallel: int = 1,
        image_key: str | None = None,
        job: RLJobSpec | None = None,
        address: str = "127.0.0.1",
    ) -> Server:
        served = job or spec(model, image_key, tensorParallel=tensor_parallel)
        parts = parts_of(served.rollout.nodes, address)
        followers = [fork(served, attempt, part) for part in parts[1:]]
        server = replace(fork(served, attempt, parts[0]), followers=followers)
        server.wait()
        return server

    yield begin
    for server in servers:
        server.kill()


def parts_of(nodes: int, address: str) -> list[PodPart] | list[None]:
    """Of a server of so many pods, which here share an address. One pod has the whole server."""
    pods = [
        ServerPart(pod=f"pod-{rank}", pod_uid="uid", boot_id="", address=address, node_rank=rank)
        for rank in range(nodes)
    ]
    group = ServerGroup(name="server", generation=1, parts=pods, master_port=free_port(), rpc_port=free_port())
    return [PodPart(group, rank) for rank in range(nodes)] if nodes > 1 else [None]


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {
        "old": models.make(root / "old", seed=1),
        "new": models.make(root / "new", seed=2),
        "tied": models.make(root / "tied", seed=3, tied=True),
        "tied-new": models.make(root / "tied-new", seed=4, tied=True),
    }


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch) -> Caller:
    """Of the front, by the job's token."""
    monkeypatch.setenv(names.ENV_ROLLOUT_TOKEN, "secret")
    return Caller()
