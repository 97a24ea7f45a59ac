"""A loop of the official SDK against a service on this machine: real ranks, a real vLLM server, and the gateway. One service serves all tests."""

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import tinker
from tinker import types

from trainer.gateway.calls_page import OLDER, PAGE, PINNED, VERSIONS, cell, outcomes, rows
from trainer.gateway.running import SECONDS, RunningService, running
from trainer.pod.gang import wait_for
from trainer.server.models import make

pytestmark = pytest.mark.slow

STEP = types.AdamParams(learning_rate=1e-2)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    root = tmp_path_factory.mktemp("service")
    offered = {"checkpointSeconds": 1, "maxModels": 24, "maxRank": 32, "maxTokens": 512}
    with running(root, make(root / "model", seed=3), service=offered) as found:
        yield found


@pytest.fixture(scope="module")
def service(run: RunningService) -> Iterator[tinker.ServiceClient]:
    os.environ["TINKER_TELEMETRY"] = "0"
    with tinker.ServiceClient(base_url=run.url, api_key="tml-any") as client:
        yield client


def model_of(service: tinker.ServiceClient, run: RunningService, rank: int = 4) -> Any:
    created = service.create_lora_training_client(base_model=run.model, rank=rank, seed=1, train_unembed=False)
    return created.result(timeout=SECONDS)


def datum(first: int) -> types.Datum:
    tokens = [first + i for i in range(19)]
    targets = types.TensorData.from_numpy(np.array([*tokens[1:], 7]))
    weights = types.TensorData.from_numpy(np.ones(19, np.float32))
    inputs = {"target_tokens": targets, "weights": weights}
    return types.Datum(model_input=types.ModelInput.from_ints(tokens), loss_fn_inputs=inputs)


def several(first: int, targets: np.ndarray) -> types.Datum:
    """`targets`: [19, K]"""
    inputs = {"target_tokens": targets.astype(np.int64), "weights": np.ones(targets.shape, np.float32)}
    tokens = types.ModelInput.from_ints([first + i for i in range(19)])
    columns = {name: types.TensorData.from_numpy(values) for name, values in inputs.items()}
    return types.Datum(model_input=tokens, loss_fn_inputs=columns)


def log_probs(output: Any) -> np.ndarray:
    return np.concatenate([found["logprobs"].to_numpy() for found in output.loss_fn_outputs])


def learnt(
    training: Any, run: RunningService, kills: dict[int, str] | None = None, first: int = 10
) -> tuple[list[float], bytes]:
    """Losses and norms of five steps, and the log-probabilities at the end. `kills`: what is killed while a step is under way."""
    numbers = []
    for step in range(5):
        passes = [training.forward_backward([datum(first + i), datum(30 + i)], "cross_entropy") for i in range(2)]
        stepped = training.optim_step(STEP)
        if kills and step in kills:
            run.kill(kills[step])
        losses = [found.result(timeout=SECONDS).metrics["loss:sum"] for found in passes]
        numbers += [*losses, *stepped.result(timeout=SECONDS).metrics.values()]
    return numbers, log_probs(training.forward([datum(12)], "cross_entropy").result(timeout=SECONDS)).tobytes()


def test_a_loop_learns_samples_what_it_has_learnt_and_continues_from_what_it_saved(
    run: RunningService, service: tinker.ServiceClient
) -> None:
    training, other = model_of(service, run), model_of(service, run, rank=2)
    assert training.get_info().lora_rank == 4
    for _ in range(8):
        loss = training.forward_backward([datum(10)], "cross_entropy")
        training.optim_step(STEP).result(timeout=SECONDS)
    first = other.forward([datum(10)], "cross_entropy").result(timeout=SECONDS).metrics["loss:sum"]
    assert loss.result(timeout=SECONDS).metrics["loss:sum"] < 0.8 * first

    sampler = training.save_weights_and_get_sampling_client().result(timeout=SECONDS)
    base = service.create_sampling_client(base_model=run.model)
    tokens = types.ModelInput.from_ints([10 + i for i in range(20)])
    mine = log_probs(training.forward([datum(10)], "cross_entropy").result(timeout=SECONDS))[:18]
    served = np.array(sampler.compute_logprobs(tokens).result(timeout=SECONDS)[1:19])
    assert served == pytest.approx(mine, abs=2e-5)
    last = sampler.compute_logprobs(tokens, prompt_logprobs_last_n=3).result(timeout=SECONDS)
    assert last[:-3] == [None] * 17 and last[-3:-1] == pytest.approx(mine[-2:], abs=2e-5)
    assert np.abs(np.array(base.compute_logprobs(tokens).result(timeout=SECONDS)[1:19]) - mine).max() > 0.1

    params = types.SamplingParams(max_tokens=6, temperature=1.0, seed=5, stop=[])
    found = [sampler.sample(tokens, 2, params).result(timeout=SECONDS).sequences for _ in range(2)]
    assert [s.tokens for s in found[0]] == [s.tokens for s in found[1]]
    assert {(len(s.tokens), len(s.logprobs), s.stop_reason) for s in found[0]} == {(6, 6, "length")}
    likeliest = sampler.sample(tokens, 1, params, True, 3, 3).result(timeout=SECONDS)
    assert likeliest.topk_prompt_logprobs[0] is None and len(likeliest.topk_prompt_logprobs) == 20
    named = np.array(likeliest.topk_prompt_logprobs[1:])
    assert (np.diff(named[..., 1]) <= 0).all() and named.shape == (19, 3, 2)
    asked = training.forward([several(10, named[..., 0])], "cross_entropy").result(timeout=SECONDS)
    assert log_probs(asked) == pytest.approx(named[..., 1], abs=2e-5)
    sequence = likeliest.sequences[0]
    assert [len(place) for place in sequence.topk_logprobs] == [3] * 6
    of_own = [
        dict(place).get(token, -9.0) for token, place in zip(sequence.tokens, sequence.topk_logprobs, strict=True)
    ]
    assert all(own in (-9.0, value) for own, value in zip(of_own, sequence.logprobs, strict=True))
    every = types.SamplingParams(max_tokens=30, temperature=1.0, stop=list(range(128)))
    ended = sampler.sample(tokens, 1, every).result(timeout=SECONDS).sequences[0]
    assert (ended.stop_reason, len(ended.tokens)) == ("stop", 1)

    path = training.save_state("half").result(timeout=SECONDS).path
    training.forward_backward([datum(50)], "cross_entropy")
    training.optim_step(STEP).result(timeout=SECONDS)
    again = service.create_training_client_from_state_with_optimizer(path)
    assert log_probs(again.forward([datum(10)], "cross_entropy").result(timeout=SECONDS))[:18].tolist() == mine.tolist()
    named = training.save_weights_for_sampler("done").result(timeout=SECONDS).path
    assert service.create_sampling_client(model_path=named).sample(tokens, 1, params).result(timeout=SECONDS).sequences


def test_what_is_refused_fails_alone_and_the_loop_goes_on(run: RunningService, service: tinker.ServiceClient) -> None:
    training = model_of(service, run)
    refused = training.forward_backward([datum(10)], "a_loss_of_mine")
    served = training.forward([datum(10)], "cross_entropy")
    with pytest.raises(tinker.RequestFailedError, match="a_loss_of_mine is not served"):
        refused.result(timeout=SECONDS)
    assert served.result(timeout=SECONDS).metrics["loss:sum"] > 0
    with pytest.raises(tinker.RequestFailedError, match="from 1 to 32"):
        model_of(service, run, rank=33)


def test_a_run_whose_gateway_driver_and_ranks_are_killed_ends_with_the_same_bits(
    run: RunningService, service: tinker.ServiceClient
) -> None:
    undisturbed = learnt(model_of(service, run), run)
    kills = {1: "gateway", 2: "-m rljob_trainer.driver.", 3: "-m rljob_trainer.rank.main"}
    assert learnt(model_of(service, run), run, kills) == undisturbed
    assert "attempt 3" in run.output.read_text(), "the driver's end and a rank's are attempts' ends"


def test_two_clients_of_ranks_8_and_32_at_once_get_the_bits_that_each_gets_alone(
    run: RunningService, service: tinker.ServiceClient
) -> None:
    clients = {8: 10, 32: 50}
    alone = [learnt(model_of(service, run, rank), run, first=first) for rank, first in clients.items()]
    with tinker.ServiceClient(base_url=run.url, api_key="tml-any") as other, ThreadPoolExecutor() as threads:
        models = model_of(service, run, 8), model_of(other, run, 32)
        begun = [
            threads.submit(learnt, training, run, first=first)
            for training, first in zip(models, clients.values(), strict=True)
        ]
        assert [found.result() for found in begun] == alone
        samplers = [training.save_weights_and_get_sampling_client() for training in models]
        tokens = types.ModelInput.from_ints([10 + i for i in range(20)])
        for training, sampler in zip(models, samplers, strict=True):
            mine = log_probs(training.forward([datum(10)], "cross_entropy").result(timeout=SECONDS))[:18]
            served = sampler.result(timeout=SECONDS).compute_logprobs(tokens).result(timeout=SECONDS)[1:19]
            assert np.array(served) == pytest.approx(mine, abs=2e-5)


PROMPT = [10 + i for i in range(20)]
LONG = types.SamplingParams(max_tokens=480, temperature=1.0, seed=5, stop=[])


def published(training: Any) -> None:
    """Train a step, and sample from a new snapshot."""
    training.forward_backward([datum(10)], "cross_entropy")
    training.optim_step(STEP)
    sampler = training.save_weights_and_get_sampling_client().result(timeout=SECONDS)
    sampler.compute_logprobs(types.ModelInput.from_ints(PROMPT)).result(timeout=SECONDS)


def turn(run: RunningService, training: Any) -> tuple[int, int]:
    """Tokens that the server generates for others while a client publishes, and as long after that."""
    before, begun = run.generated, time.monotonic()
    published(training)
    seconds, middle = time.monotonic() - begun, run.generated
    time.sleep(seconds)
    return middle - before - 1, run.generated - middle


def scored(training: Any, tokens: list[int]) -> np.ndarray:
    """By the ranks: of each token behind the prompt."""
    sequence = [*PROMPT, *tokens]
    columns = {"target_tokens": np.array(sequence[1:]), "weights": np.ones(len(sequence) - 1, np.float32)}
    inputs = {name: types.TensorData.from_numpy(values) for name, values in columns.items()}
    asked = [types.Datum(model_input=types.ModelInput.from_ints(sequence[:-1]), loss_fn_inputs=inputs)]
    return log_probs(training.forward(asked, "cross_entropy").result(timeout=SECONDS))[len(PROMPT) - 1 :]


def test_a_sample_goes_on_with_the_bits_of_its_own_adapters_while_another_client_publishes(
    run: RunningService, service: tinker.ServiceClient
) -> None:
    mine, prompt = model_of(service, run, rank=32), types.ModelInput.from_ints(PROMPT)
    learnt(mine, run, first=50)
    sampler = mine.save_weights_and_get_sampling_client().result(timeout=SECONDS)
    alone = sampler.sample(prompt, 1, LONG).result(timeout=SECONDS).sequences[0]
    with tinker.ServiceClient(base_url=run.url, api_key="tml-any") as other:
        theirs, before = model_of(other, run, rank=8), run.generated
        sampled = sampler.sample(prompt, 1, LONG).future()
        wait_for("tokens", lambda: run.generated > before + 10, SECONDS)
        turns = list[tuple[int, int]]()
        while not sampled.done():
            turns.append(turn(run, theirs))
        print(f"tokens while another client publishes, and as long after that: {turns}")
        # the last turn may have outlasted the sample, which then had less time for tokens after it
        during, after = map(sum, zip(*(turns[:-1] or turns), strict=True))
        assert during > 0.2 * after
        found = sampled.result(timeout=SECONDS).sequences[0]
        assert (found.tokens, found.logprobs) == (alone.tokens, alone.logprobs)
        assert scored(mine, found.tokens) == pytest.approx(np.array(found.logprobs), abs=5e-5)
        assert np.abs(scored(theirs, found.tokens) - np.array(found.logprobs))[-20:].max() > 0.1


@pytest.mark.parametrize("version", [PINNED, *(pytest.param(older, marks=pytest.mark.extra) for older in OLDER)])
def test_the_page_says_which_calls_are_served(run: RunningService, version: str) -> None:
    found = outcomes(version, run.url, run.model)
    assert not [error for error in found.values() if error.startswith("TypeError")], "the SDK takes other arguments"
    column = list(VERSIONS).index(version)
    assert {call: cell(outcome) for call, outcome in found.items()} == {
        call: cells[column] for call, cells in rows(PAGE.read_text()).items()
    }, found
