"""The generate route before an engine that is told what to do. Before vLLM's: test_generate_served.py."""

import asyncio
import json
import math
import struct
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rljob_trainer.server import generate as module
from rljob_trainer.server.generate import generate, later, routed_experts
from rljob_trainer.wire.completions import Completion, decode, encode
from rljob_trainer.wire.rollout_server import pack_tokens
from rljob_trainer.wire.weights.protocol import PolicyVersion

BODY = {"prompt": pack_tokens([2, 3, 4]), "n": 2, "seed": 5, "temperature": 1.0, "max_tokens": 7}
DRAWN = [
    Completion((7, 151935), (-0.1, -1e-30), "stop"),
    Completion((9,), (-math.pi,), "length"),
    Completion((), (), "abort"),
]
VERSIONS = [SimpleNamespace(version="3", start=0), SimpleNamespace(version="5", start=1)]
"""Of the weights that drew a response, as vLLM says them: the first token is of step 3, those behind it are of step 5."""
POLICY = PolicyVersion(attempt=1, step=3, digest="d")


class Engine:
    """Answers DRAWN; raises `failure` first, if there is one, or never answers."""

    def __init__(self, failure: Exception | None = None, silent: bool = False):
        self.model_config = SimpleNamespace(max_model_len=10)
        self.vllm_config = SimpleNamespace(lora_config=None)
        self.asked: list[Any] = []
        self.left = False
        self._failure, self._silent = failure, silent

    async def generate(self, prompt: Any, parameters: Any, request_id: str, lora_request: None) -> AsyncIterator[Any]:
        self.asked.append((prompt["prompt_token_ids"], prompt["cache_salt"], parameters["seed"]))
        if self._failure:
            raise self._failure
        try:
            await asyncio.sleep(60 if self._silent else 0)
        except asyncio.CancelledError:
            self.left = True
            raise
        outputs = [
            SimpleNamespace(token_ids=d.tokens, logprobs=SimpleNamespace(logprobs=d.log_probs), finish_reason=d.finish_reason,
                            routed_experts=None, weight_versions=VERSIONS[:len(d.tokens)],
                            spec_decode_metrics=SimpleNamespace(histogram=[3, 0, 2]) if d.tokens else None)
            for d in DRAWN
        ]  # fmt: skip
        yield SimpleNamespace(outputs=outputs)


@pytest.fixture(autouse=True)
def without_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes half a minute to import for a class that only carries values."""
    monkeypatch.setattr(module, "sampling_parameters", dict)


async def ask(engine: Engine, body: Any, leaves: bool = False) -> tuple[int, bytes]:
    """Status and body. A client that `leaves` is gone as soon as its request has been read."""
    messages: list[dict] = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]
    messages += [{"type": "http.disconnect"}] if leaves else []
    sent: list[Any] = []

    async def receive() -> Any:
        if not messages:
            await asyncio.sleep(60)
        return messages.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    app = SimpleNamespace(state=SimpleNamespace(engine_client=engine))
    scope = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": [], "app": app}
    await asyncio.wait_for(generate(POLICY, scope, receive, send), 50)
    return sent[0]["status"], b"".join(message["body"] for message in sent[1:])


def read(body: bytes) -> list[Completion]:
    return decode(np.frombuffer(body, np.uint8))


async def test_the_engine_s_tokens_and_log_probabilities_are_the_answer() -> None:
    engine = Engine()
    status, body = await ask(engine, BODY)
    assert status == 200 and engine.asked == [([2, 3, 4], "d", 5)], "what is cached under one policy is not for another"
    assert [d.tokens.tolist() for d in read(body)] == [list(d.tokens) for d in DRAWN]
    assert [d.finish_reason for d in read(body)] == ["stop", "length", "abort"]


async def test_an_answer_says_how_many_passes_read_guesses_and_how_many_guesses_were_right() -> None:
    _, body = await ask(Engine(), BODY)
    assert [d.guesses for d in read(body)] == [(5, 4), (5, 4), (0, 0)]


async def test_an_answer_says_from_which_token_on_another_policy_drew_it() -> None:
    _, body = await ask(Engine(), BODY)
    assert [[*d.later] for d in read(body)] == [[(1, 5)], [], []]
    output = SimpleNamespace(weight_versions=VERSIONS)
    assert later(output, PolicyVersion(1, 2, "d")) == [(0, 3), (1, 5)], (
        "a request that reached the engine after an update"
    )
    assert later(SimpleNamespace(weight_versions=None), POLICY) == []


def test_a_log_probability_arrives_as_the_float32_that_it_was() -> None:
    numbers = struct.unpack("<5f", struct.pack("<5f", -0.1, -1e-30, -math.pi, -0.0, -math.inf))
    (found,) = read(b"".join(encode([Completion([1] * 5, numbers, "stop")]).pieces))
    assert struct.pack("<5d", *found.log_probs) == struct.pack("<5d", *numbers)


EXPERTS = np.arange(1, 17, dtype=np.uint8).reshape(4, 2, 2)
"""Of two layers: a prompt of three tokens, and the first of a response of two."""


def finished(experts: np.ndarray | None, reason: str = "stop") -> Any:
    return SimpleNamespace(token_ids=(7, 8), finish_reason=reason, routed_experts=experts)


def test_experts_arrive_with_a_complete_response_and_not_with_a_part_of_one() -> None:
    whole = Completion((7, 8), (-1.0, -2.0), "stop", routed_experts(finished(EXPERTS), 3))
    found, plain = read(b"".join(encode([whole, DRAWN[0]]).pieces))
    assert found.routed_experts is not None and found.routed_experts.dtype == np.uint8
    assert found.routed_experts.tolist() == EXPERTS.tolist() and plain.routed_experts is None
    assert routed_experts(finished(EXPERTS, "abort"), 3) is None and routed_experts(finished(None), 3) is None


@pytest.mark.parametrize(("last", "kind"), [(255, np.uint8), (256, np.uint16)], ids=["256 experts", "257 experts"])
def test_the_last_of_many_experts_arrives_as_itself(last: int, kind: type[np.integer]) -> None:
    """vLLM's types are the two; what arrives of the second is int16, which torch computes with."""
    experts = EXPERTS.astype(kind)
    experts[-1] = last
    whole = Completion((7, 8), (-1.0, -2.0), "stop", routed_experts(finished(experts), 3))
    (found,) = read(b"".join(encode([whole]).pieces))
    assert found.routed_experts is not None and found.routed_experts.tolist() == experts.tolist()
    assert found.routed_experts.itemsize == experts.itemsize and found.routed_experts.dtype != np.uint16


@pytest.mark.parametrize("experts", [EXPERTS * 0, EXPERTS[1:]], ids=["all the same", "one token short"])
def test_a_server_whose_kernels_do_not_say_which_experts_they_chose_is_no_server_for_replay(
    experts: np.ndarray,
) -> None:
    with pytest.raises(ValueError, match="routerReplay to trainer or none"):
        routed_experts(finished(experts), 3)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"prompt": pack_tokens([1] * 4)}, "4 and 7 more tokens do not fit into max-model-len 10"),
        ({"prompt": None}, "TypeError"),
        ({"max_tokens": "7"}, "TypeError"),
    ],
)
async def test_a_wrong_request_is_refused_and_the_engine_not_asked(change: dict, says: str) -> None:
    engine = Engine()
    status, body = await ask(engine, BODY | change)
    assert status == 400 and says in body.decode() and not engine.asked


async def test_a_prompt_that_is_too_long_is_refused_with_openai_s_name_for_it() -> None:
    _, body = await ask(Engine(), BODY | {"prompt": pack_tokens([1] * 4)})
    assert json.loads(body)["code"] == "context_length_exceeded"


async def test_a_request_that_lacks_something_is_refused() -> None:
    status, body = await ask(Engine(), {"n": 1})
    assert status == 400 and "prompt" in body.decode()


@pytest.mark.parametrize(("failure", "status"), [(ValueError("token 999 is none"), 400), (RuntimeError("dead"), 500)])
async def test_what_the_engine_refuses_is_the_client_s_fault_and_what_it_fails_at_is_not(
    failure: Exception, status: int
) -> None:
    found, body = await ask(Engine(failure), BODY)
    assert found == status and str(failure) in body.decode()


async def test_a_client_that_leaves_ends_its_generation() -> None:
    engine = Engine(silent=True)
    await ask(engine, BODY, leaves=True)
    assert engine.left
