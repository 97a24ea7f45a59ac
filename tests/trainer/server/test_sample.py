"""What a server of a service refuses before vLLM sees it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from starlette.applications import Starlette
from starlette.routing import Route
from starlette.testclient import TestClient

from rljob_api.rules.lora import CONFIG, WEIGHTS
from rljob_trainer.server.sample import _adapter, _of_prompt, _sample, number_of, sample
from rljob_trainer.wire.rollout_server import DIGEST, Adapter, SampleRequest, snapshot_digest


@pytest.mark.parametrize("files", [(), ("adapter_config.json",), ("adapter_model.safetensors", ".metadata")])
def test_a_directory_without_adapters_is_refused_before_the_engine_reads_it(
    tmp_path: Path, files: tuple[str, ...]
) -> None:
    for name in files:
        (tmp_path / name).touch()
    adapter = Adapter("a", str(tmp_path))
    body = SampleRequest(tokens=[1], n=1, seed=0, max_tokens=1, adapter=adapter).body()
    app = Starlette(routes=[Route("/", sample, methods=["POST"])])
    app.state.engine_client = None  # nothing of it may be used
    found = TestClient(app).post("/", json=body)
    assert found.status_code == 400 and f"the snapshot {tmp_path} has no adapter_" in found.text


@pytest.mark.parametrize("damaged", [b"weight", b"Weights", b""])
def test_a_snapshot_that_is_not_what_was_saved_is_refused_also_after_it_was_served(
    tmp_path: Path, damaged: bytes
) -> None:
    weights = tmp_path / WEIGHTS
    weights.write_bytes(b"weights")
    (tmp_path / CONFIG).touch()
    (tmp_path / DIGEST).write_text(snapshot_digest(tmp_path))
    adapter = Adapter("a", str(tmp_path))
    assert _adapter(adapter).path == str(tmp_path)
    weights.write_bytes(damaged)
    with pytest.raises(ValueError, match=f"{tmp_path} is damaged"):
        _adapter(adapter)


def test_engines_on_gpus_take_the_numbers_of_snapshots_and_no_two_have_the_same() -> None:
    """A worker's state on a GPU holds them as 32 bits, where one on a CPU takes any."""
    from vllm.lora.request import LoRARequest
    from vllm.v1.worker.gpu.lora_utils import LoraState

    names = [f"{'0123456789abcdef' * 2}-sampler-{i}" for i in range(6000)]
    numbers = [number_of(name) for name in names]
    assert len({*numbers}) == len(names) and [number_of(name) for name in names[-100:]] == numbers[-100:]
    assert number_of(names[0]) not in numbers[1:], "one that was forgotten is no other's"
    state = LoraState(len(names))
    for i, (name, number) in enumerate(zip(names, numbers, strict=True)):
        state.add_request(name, i, LoRARequest(name, number, "/snapshot"))
    assert state.lora_ids.tolist() == numbers


def place(*found: tuple[int, float, int]) -> dict[int, Any]:
    """Token, log-probability, rank: as vLLM has them, the position's own token first."""
    return {token: SimpleNamespace(logprob=value, rank=rank) for token, value, rank in found}


PLACES = [None, place((8, -4.0, 9), (3, -0.5, 1), (2, -1.0, 2)), place((3, -0.25, 1), (5, -2.0, 2))]
"""Of the prompt 7 8 3."""


@pytest.mark.parametrize(
    ("asked", "scores", "tokens"),
    [
        ({"prompt_log_probs": 3, "likeliest_of_prompt": 2}, [np.nan, -4.0, -0.25], [[0, 0], [3, 2], [3, 5]]),
        ({"prompt_log_probs": 1, "likeliest_of_prompt": 2}, [np.nan, np.nan, -0.25], [[0, 0], [0, 0], [3, 5]]),
        ({"likeliest_of_prompt": 2}, None, [[0, 0], [3, 2], [3, 5]]),
        ({"prompt_log_probs": 2}, [np.nan, -4.0, -0.25], None),
    ],
)
def test_a_prompt_has_what_was_asked_for_at_its_last_tokens(asked: dict[str, int], scores: Any, tokens: Any) -> None:
    request = SampleRequest(tokens=[7, 8, 3], n=1, seed=0, max_tokens=1, **asked)
    log_probs, likeliest = _of_prompt(request, PLACES)
    assert (log_probs is None) == (scores is None) and (likeliest is None) == (tokens is None)
    if log_probs is not None:
        np.testing.assert_array_equal(log_probs, np.asarray(scores, "<f4"))
    if likeliest is not None:
        assert likeliest.tokens.tolist() == tokens
        assert (np.isnan(likeliest.log_probs) == (likeliest.tokens == 0)).all()


class _FlatLogProbs(list[dict[int, Any]]):
    """vLLM's of a sample."""

    @property
    def logprobs(self) -> list[float]:
        return [found.logprob for place in self for found in place.values()]


def test_a_sample_has_the_log_probability_of_its_token_and_the_likeliest_ones() -> None:
    places = _FlatLogProbs([place((8, -4.0, 9), (3, -0.5, 1), (2, -1.0, 2))])
    found = _sample(SimpleNamespace(logprobs=places, token_ids=[8], finish_reason="length"), 2)
    assert found.log_probs.tolist() == [-4.0] and found.likeliest is not None
    assert (found.likeliest.tokens.tolist(), found.likeliest.log_probs.tolist()) == ([[3, 2]], [[-0.5, -1.0]])
