"""10,000 samples, and 3,000 passes, of the official SDK, open at the same time at a gateway in a process of its own, over HTTP.

`pytest -s` shows what it costs.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import tinker
from tinker import types

from rljob_trainer.machine import raise_open_files
from trainer.gateway.process import BASE, GatewayProcess, Surroundings
from trainer.pod.gang import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.extra]

COUNT = 10_000
PASSES = 3_000
"""The SDK asks for the result of each pass alone, at least every 45 s: for 10,000 that is all that one processor of a script can do, so that it
comes to submit no more."""
SECONDS = 600
MOST_MEMORY = 400 * 2**20
"""Bytes that this many open futures may cost."""
LEAK = 16 * 2**20
"""Bytes by which another script with as many may raise the most that the process had."""


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[GatewayProcess]:
    raise_open_files()
    os.environ["TINKER_TELEMETRY"] = "0"
    started = GatewayProcess(tmp_path)
    started.start()
    yield started
    started.kill()


@pytest.fixture
def others(gateway: GatewayProcess, tmp_path: Path) -> Iterator[Surroundings]:
    with Surroundings(gateway, tmp_path).running() as running:
        yield running


@pytest.fixture
def service(gateway: GatewayProcess, others: Surroundings) -> Iterator[tinker.ServiceClient]:
    with tinker.ServiceClient(base_url=gateway.url, api_key="tml-any") as client:
        yield client


@contextmanager
def script(gateway: GatewayProcess, first: int) -> Iterator[None]:
    """Runs many_samples.py, whose answers are right once this ends."""
    command = [
        sys.executable,
        str(Path(__file__).with_name("many_samples.py")),
        gateway.url,
        BASE,
        str(first),
        str(COUNT),
    ]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    with subprocess.Popen(command, env=environment) as process:
        yield
        assert process.wait(SECONDS) == 0


def test_each_of_ten_thousand_samples_gets_its_own_answer_and_another_script_needs_no_more_memory(
    gateway: GatewayProcess, others: Surroundings
) -> None:
    """Connections end with a script. One script opens some thousand, of 20 KiB each, when its answers are there, and as many again later."""
    peaks = [gateway.memory]
    for first in (0, COUNT):
        others.call(others.may_sample.clear)
        begun = time.monotonic()
        with script(gateway, first):
            wait_for("requests", lambda: gateway.waiting == COUNT, SECONDS)
            submitted = time.monotonic() - begun
            others.call(others.may_sample.set)
        peaks.append(gateway.peak)
        print(
            f"{COUNT} samples wait after {submitted:.1f} s, answered after {time.monotonic() - begun:.1f} s", end="; "
        )
        print(f"the gateway has used {gateway.seconds:.0f} s of the processors")
    assert set(others.sampled.values()) == {1} and len(others.sampled) == 2 * COUNT, "each was asked for once"
    print("memory in MiB:", [peak // 2**20 for peak in peaks])
    assert peaks[1] - peaks[0] < MOST_MEMORY and peaks[2] - peaks[1] < LEAK


def datum(first: int) -> types.Datum:
    inputs = {"target_tokens": np.array([1, 2]), "weights": np.ones(2, np.float32)}
    columns = {name: types.TensorData.from_numpy(values) for name, values in inputs.items()}
    return types.Datum(model_input=types.ModelInput.from_ints([first, 1]), loss_fn_inputs=columns)


def test_each_of_three_thousand_passes_of_a_model_gets_its_own_result_though_the_gateway_is_killed(
    gateway: GatewayProcess, others: Surroundings, service: tinker.ServiceClient
) -> None:
    training = service.create_lora_training_client(BASE, rank=4, train_unembed=False).result(timeout=SECONDS)
    before, begun = gateway.memory, time.monotonic()
    asked = [training.forward([datum(i)], "cross_entropy") for i in range(PASSES)]
    wait_for("requests", lambda: gateway.waiting == PASSES, SECONDS)
    submitted, cost, used = time.monotonic() - begun, gateway.peak - before, gateway.seconds
    others.call(others.may_work.set)
    wait_for("half of the results", lambda: len(others.executed) > PASSES / 2, SECONDS)
    gateway.kill()
    gateway.start()
    outputs = [future.result(timeout=SECONDS) for future in asked]
    again = gateway.peak - before
    seconds = f"{used:.0f} and {gateway.seconds:.0f} s of the processors"
    print(f"{PASSES} passes wait after {submitted:.1f} s, {cost // 2**20} MiB", end="; ")
    print(
        f"all have results after {time.monotonic() - begun:.1f} s, {again // 2**20} MiB in the second process; {seconds}"
    )
    echoes = [found.loss_fn_outputs[0]["logprobs"].to_numpy().tolist() for found in outputs]
    assert echoes == [[i, i] for i in range(PASSES)]
    assert [found.metrics["loss:sum"] for found in outputs] == [i + 1 for i in range(PASSES)]
    assert sorted(others.executed) == [*range(1, PASSES + 1)]
    assert others.executed.total() <= PASSES + 1, "one may have been under way when the gateway was killed"
    assert max(cost, again) < MOST_MEMORY
