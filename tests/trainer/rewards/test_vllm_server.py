"""A reward model on a real vLLM server on CPU, started as one of a pool, against Hugging Face's own score."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest
import torch
from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForSequenceClassification

from rljob_api.spec.model import RewardSpec, VllmReward
from rljob_trainer.rewards.manager import RewardManager
from rljob_trainer.rewards.request import RewardFailed, RewardRequest
from rljob_trainer.rewards.vllm_server import Pools
from rljob_trainer.wire.rollout_client import answers
from rljob_trainer.wire.weights.protocol import HEALTH
from trainer.server.servers import TOKEN, Server, pool_server

pytestmark = pytest.mark.slow

LETTERS = "0123456789+-*="
END, BEGIN = 1, 2
VLLM_ARGS = {"runner": "pooling", "dtype": "float32", "max-model-len": 64, "kv-cache-memory-bytes": 67108864}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sequence classifier of one label with a tokenizer of one token per character, which begins every text with a token of its own."""
    path = tmp_path_factory.mktemp("reward-model")
    torch.manual_seed(0)
    classifier = Qwen2ForSequenceClassification(
        Qwen2Config(
            vocab_size=17, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            max_position_embeddings=64, num_labels=1, pad_token_id=0, eos_token_id=1, bos_token_id=None,
        )
    )  # fmt: skip
    with torch.no_grad():
        for parameter in classifier.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.15)
    classifier.save_pretrained(path)
    words = Tokenizer(WordLevel({c: i for i, c in enumerate(["<pad>", "<end>", "<begin>", *LETTERS])}))
    words.post_processor = TemplateProcessing(single="<begin> $A", special_tokens=[("<begin>", BEGIN)])
    words.pre_tokenizer = Split(Regex("."), "isolated")
    PreTrainedTokenizerFast(
        tokenizer_object=words, eos_token="<end>", pad_token="<pad>", bos_token="<begin>"
    ).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    pool = {"name": "scores", "model": str(model), "vllmArgs": VLLM_ARGS}
    with pool_server(pool, tmp_path_factory.mktemp("server") / "log") as served:
        yield served


def tokens_of(text: str) -> tuple[int, ...]:
    """As a policy reads and writes them: one beginning, and an end."""
    return (BEGIN, *(3 + LETTERS.index(c) for c in text), END)


def score(model: Path, tokens: tuple[int, ...]) -> float:
    classifier = Qwen2ForSequenceClassification.from_pretrained(model, dtype=torch.float32).eval()
    with torch.no_grad():
        return float(classifier(torch.tensor([[*tokens]])).logits)


async def test_a_real_reward_model_scores_as_hugging_face_does_and_refuses_what_is_too_long(
    model: Path, server: Server
) -> None:
    pools = Pools(["scores"], TOKEN)
    pools.follow({"scores": [server.endpoint]})
    manager = RewardManager([RewardSpec(vllm=VllmReward(pool="scores"), timeout_seconds=60)], pools)
    await manager.start()
    try:
        texts = ["1", "2", "42", "3-1", "0" * 40]
        asked = [RewardRequest("1+1=", text, "", "s", tokens_of("1+1=" + text)) for text in texts]
        scores = [reward.score for reward in await asyncio.gather(*map(manager.score, asked))]
        expected = [score(model, request.tokens) for request in asked]
        assert scores == pytest.approx(expected, abs=1e-4) and len({round(s, 3) for s in scores}) == len(texts)
        with pytest.raises(RewardFailed, match="status 400") as caught:
            await manager.score(RewardRequest("1+1=", "", "", "s", tokens_of("0" * 64)))
        assert caught.value.kind == "service"
    finally:
        await manager.stop()


async def test_it_answers_to_the_jobs_token_only_and_says_how_its_engine_does(server: Server) -> None:
    async with aiohttp.ClientSession(server.endpoint.url) as session:
        for method, path in (("POST", "/pooling"), ("GET", HEALTH), ("GET", "/v1/models")):
            async with session.request(method, path, json={}) as response:
                assert response.status == 401
        async with session.get("/health") as response:
            assert response.status == 200
        async with session.get(HEALTH, headers={"Authorization": f"Bearer {TOKEN}"}) as response:
            assert await response.json() == {"silence": 0.0, "updating": False}
    assert await answers(server.endpoint, TOKEN, attempt=3) and not await answers(server.endpoint, "other", attempt=3)
