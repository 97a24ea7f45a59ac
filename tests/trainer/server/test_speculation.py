"""Servers that guess tokens: what they draw has the policy's own distribution, and the log-probabilities that they say."""

import asyncio
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen3Config
from vllm.model_executor.models.interfaces import supports_eagle3
from vllm.model_executor.models.registry import ModelRegistry

from extra import extra_but
from rljob_api.families import FAMILIES
from rljob_api.protocol import RolloutEndpoint
from rljob_api.spec.common import Sampling
from rljob_api.spec.train import EvaluationSampling
from rljob_trainer.rank.weights.publisher import Publisher
from rljob_trainer.server.compat.cpu_engine import spread
from rljob_trainer.wire.rollout_client import Generation, GenerationRequest, RolloutClient
from rljob_trainer.wire.weights.transport import over_tcp
from trainer.drafts import make_draft
from trainer.megatron.kinds import make_config
from trainer.megatron.models import add_multi_token_layer, kind_of_model, random_model
from trainer.server import models
from trainer.server.servers import TOKEN, Server, spec

SAMPLING = Sampling(temperature=0.8, max_tokens=48)
NUCLEUS = EvaluationSampling(temperature=0.8, max_tokens=48, top_p=0.7)
GREEDY = EvaluationSampling(max_tokens=48)
PROMPTS = [(2, 30, 4, 50), (7, 7, 9), tuple(range(20, 60))]
WIDTH = 128
BOUND = 1.95
"""Of the Kolmogorov-Smirnov statistic, times the root of the number of draws: larger by chance once in a thousand times. Seeds are fixed."""


def test_of_each_guess_the_value_of_its_request_is_taken() -> None:
    values, ends = torch.tensor([0.5, 0.0, 2.0, 0.25]), torch.tensor([2, 3, 3, 6], dtype=torch.int32)
    assert spread(values, ends, 6, replace_from=0, replace_to=1).tolist() == [0.5, 0.5, 1.0, 0.25, 0.25, 0.25]
    assert spread(torch.tensor([4, 9]), torch.tensor([1, 3]), 3).dtype == torch.int64


@pytest.mark.slow
def test_an_eagle_model_is_allowed_where_vllm_shows_it_hidden_states() -> None:
    allowed = [name for name, family in FAMILIES.items() if "eagle3" in family.guesses]
    with torch.device("meta"):
        names = {
            name: type(kind_of_model(make_config(name)).from_config(make_config(name))).__name__ for name in allowed
        }
    shown = [name for name in allowed if supports_eagle3(ModelRegistry.models[names[name]].load_model_cls())]
    assert shown == allowed


SMALL = {
    "hidden_size": WIDTH, "intermediate_size": 256, "num_hidden_layers": 4, "head_dim": 32, "num_attention_heads": 4,
}  # fmt: skip


def repeating(path: Path, seed: int, **shape: int) -> Path:
    """A model whose next token depends on the last one alone, so that what stood behind it before is a good guess."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=models.VOCABULARY, num_key_value_heads=2, max_position_embeddings=512, tie_word_embeddings=False,
        eos_token_id=models.END, pad_token_id=0, bos_token_id=None, **(SMALL | shape),
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config)
    _let_the_last_token_decide(model)
    model.save_pretrained(path)
    models.save_tokenizer(path)
    return path


@torch.no_grad()
def _let_the_last_token_decide(model: PreTrainedModel) -> None:
    for name, tensor in model.named_parameters():
        if name.endswith(("o_proj.weight", "down_proj.weight", "down_proj")):
            tensor.normal_(0, 1e-3)
    model.get_input_embeddings().weight.normal_()
    model.get_output_embeddings().weight.normal_(0, 0.3)
    model.get_output_embeddings().weight[models.END] = 0  # responses are long


def eagle(path: Path, own: int | None = None) -> Path:
    """A random EAGLE-3 model for those of `repeating`."""
    return make_draft(path, WIDTH, models.VOCABULARY, [1, 2, 3], own)


def publish(server: Server, tensors: list[tuple[str, torch.Tensor]], step: int) -> None:
    assert Publisher(1, TOKEN, over_tcp("127.0.0.1")).publish(step, iter(tensors), [server.endpoint], lambda: None).ok


def drawn(server: Server, samples: int, *samplings: Sampling) -> list[tuple[tuple[int, ...], Generation]]:
    return asyncio.run(drawn_from(server.endpoint, TOKEN, samples, *samplings))


async def drawn_from(
    endpoint: RolloutEndpoint, token: str, samples: int, *samplings: Sampling
) -> list[tuple[tuple[int, ...], Generation]]:
    """So many responses to each prompt by each sampling, of greedy ones one: first those of the first. All are under way at the same time."""
    async with RolloutClient(endpoint, token, 1) as client:
        asked = [(p, s, 100 * i) for s in samplings or (SAMPLING,) for i, p in enumerate(PROMPTS)]
        requests = [GenerationRequest(p, samples if s.temperature else 1, s, i) for p, s, i in asked]
        answers = await asyncio.gather(*map(client.generate, requests))
    return [(p, g) for (p, _, _), found in zip(asked, answers, strict=True) for g in found]


def distributions(
    policy: PreTrainedModel, prompt: tuple[int, ...], answer: Generation, temperature: float
) -> torch.Tensor:
    """[tokens of the answer, vocabulary], log-probabilities by transformers."""
    with torch.no_grad():
        logits = policy(torch.tensor([[*prompt, *answer.tokens.tolist()]])).logits[0, len(prompt) - 1 : -1]
    return (logits / temperature).log_softmax(-1)


def nucleus(p: torch.Tensor, share: float) -> torch.Tensor:
    """[n, vocabulary]: the distributions over the likeliest tokens whose probabilities add up to `share` (arXiv 1904.09751)."""
    likeliest, order = p.sort(-1, descending=True)
    kept = torch.where(likeliest.cumsum(-1) - likeliest < share, likeliest, 0.0)
    return torch.zeros_like(p).scatter(-1, order, kept / kept.sum(-1, keepdim=True))


def deviation(
    policy: PreTrainedModel,
    found: list[tuple[tuple[int, ...], Generation]],
    temperature: float,
    share: float = 1.0,
) -> float:
    """How far the draws are from `policy` at this temperature, from the likeliest tokens of this share: below BOUND if they are from it.

    If a token has the distribution p, then the probability of all tokens that are likelier, plus a uniform part of its own, is uniform in [0, 1]
    (Rosenblatt 1952), and independent of those before it. Guesses that are taken too often or too seldom, and wrong ones in their place, move it.
    """
    draw, ranks = torch.Generator().manual_seed(0), []
    for prompt, answer in found:
        p = nucleus(distributions(policy, prompt, answer, temperature).exp().double(), share)
        own = p.gather(1, torch.from_numpy(answer.tokens.astype("int64"))[:, None])
        above = torch.where(p > own, p, 0.0).sum(-1)
        ranks.append(above + own[:, 0] * torch.rand(len(p), generator=draw, dtype=torch.double))
    uniform = torch.cat(ranks).sort().values
    steps = torch.arange(1, len(uniform) + 1) / len(uniform)
    distance = torch.maximum((steps - uniform).max(), (uniform - steps + 1 / len(uniform)).max())
    return float(distance) * math.sqrt(len(uniform))


def log_prob_error(policy: PreTrainedModel, found: list[tuple[tuple[int, ...], Generation]]) -> float:
    errors = []
    for prompt, answer in found:
        theirs = distributions(policy, prompt, answer, SAMPLING.temperature)
        own = theirs.gather(1, torch.from_numpy(answer.tokens.astype("int64"))[:, None])[:, 0]
        errors.append(float((own - torch.from_numpy(answer.log_probs.copy())).abs().max()))
    return max(errors)


def is_greedy(policy: PreTrainedModel, prompt: tuple[int, ...], answer: Generation) -> bool:
    """Whether each token is the likeliest, or differs from it by rounding only."""
    p = distributions(policy, prompt, answer, 1.0)
    own = p.gather(1, torch.from_numpy(answer.tokens.astype("int64"))[:, None])[:, 0]
    return bool((p.max(-1).values - own).max() < 1e-4)


def acceptance(found: list[tuple[tuple[int, ...], Generation]]) -> float:
    """Tokens that a pass with guesses gave."""
    return 1 + sum(g.guesses[1] for _, g in found) / sum(g.guesses[0] for _, g in found)


def guessing_well(path: Path, seed: int, kind: str, **shape: int) -> Path:
    """A model whose next token depends on the last one alone, with a layer for multi-token prediction that knows how."""
    torch.manual_seed(seed)
    shape = {"hidden_size": WIDTH, "max_position_embeddings": 512} | shape
    config = make_config(kind, models.VOCABULARY, **shape)
    width = config.hidden_size
    model = random_model(config, seed)
    _let_the_last_token_decide(model)
    model.save_pretrained(path)
    models.save_tokenizer(path)
    add_multi_token_layer(path, seed)
    tensors = load_file(path / "model.safetensors")
    layer = f"model.layers.{config.num_hidden_layers}."
    for name, tensor in tensors.items():
        if name.startswith(layer) and name.endswith(("o_proj.weight", "down_proj", "down_proj.weight")):
            tensor.mul_(0.01)
    tensors[f"{layer}eh_proj.weight"] = torch.cat((torch.eye(width), torch.zeros(width, width)), 1)
    for norm in ("enorm", "shared_head.norm"):
        tensors[f"{layer}{norm}.weight"] = (
            tensors["model.norm.weight"].clone() if norm != "enorm" else torch.ones(width)
        )
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    return path


@pytest.mark.slow
@pytest.mark.parametrize("kind", extra_but(("glm4_moe",), [n for n, f in FAMILIES.items() if "mtp" in f.guesses]))
def test_the_policy_s_own_layer_guesses_for_the_policy_that_came_with_it(
    start: Callable[..., Server], tmp_path: Path, kind: str
) -> None:
    old, new = guessing_well(tmp_path / "old", 1, kind), guessing_well(tmp_path / "new", 2, kind)
    job = spec(old, speculation={"method": "mtp", "tokens": 2})
    server = start(old, job=job)
    publish(server, as_exported(new), 1)
    found, policy = drawn(server, 64), AutoModelForCausalLM.from_pretrained(new, dtype=torch.float32).eval()
    own = acceptance(found)
    wrong = [(n, -t if n.endswith("eh_proj.weight") else t) for n, t in as_exported(new) if n.startswith(LAYER)]
    publish(server, [pair for pair in as_exported(new) if not pair[0].startswith(LAYER)] + wrong, 2)
    with_wrong = drawn(server, 16)
    refused = Publisher(1, TOKEN, over_tcp("127.0.0.1")).publish(
        3, (pair for pair in as_exported(new) if not pair[0].startswith(LAYER)), [server.endpoint], lambda: None
    )
    server.kill()
    assert log_prob_error(policy, found) < 1e-4
    assert deviation(policy, found, SAMPLING.temperature) < BOUND
    assert deviation(policy, found, 1.0) > 3 * BOUND, "another temperature must show"
    assert own > 1.5
    assert deviation(policy, with_wrong, SAMPLING.temperature) < BOUND, "bad guesses cost time, not the distribution"
    assert acceptance(with_wrong) < 1.2, "the layer guesses with what an update brings"
    assert not refused.ok, "an update without the layer is none"


LAYER = "model.layers.4."


def as_exported(path: Path) -> list[tuple[str, torch.Tensor]]:
    return list(load_file(path / "model.safetensors").items())


@pytest.mark.slow
@pytest.mark.parametrize("method", [pytest.param("ngram", marks=pytest.mark.extra), "eagle3"])
def test_guessed_tokens_have_the_distribution_of_the_policy_that_was_published(
    start: Callable[..., Server], tmp_path: Path, method: str
) -> None:
    old, new = repeating(tmp_path / "old", 1), repeating(tmp_path / "new", 2)
    guessing = {"method": method, "tokens": 3} | (
        {"draft": str(eagle(tmp_path / "draft"))} if method == "eagle3" else {}
    )
    server = start(old, job=spec(old, speculation=guessing))
    publish(server, models.tensors(new), 1)
    found, policy = drawn(server, 64), AutoModelForCausalLM.from_pretrained(new, dtype=torch.float32).eval()
    mixed = drawn(server, 32, NUCLEUS, GREEDY)
    server.kill()
    likeliest, greedy = mixed[: -len(PROMPTS)], mixed[-len(PROMPTS) :]
    assert deviation(policy, likeliest, NUCLEUS.temperature, NUCLEUS.top_p) < BOUND
    assert deviation(policy, likeliest, NUCLEUS.temperature) > 3 * BOUND, "all tokens must show"
    assert all(is_greedy(policy, prompt, answer) for prompt, answer in greedy)
    assert log_prob_error(policy, found) < 1e-4
    assert deviation(policy, found, SAMPLING.temperature) < BOUND
    assert deviation(policy, found, 1.0) > 3 * BOUND, "another temperature must show"
    assert acceptance(found) > (1.2 if method == "ngram" else 1.0)
