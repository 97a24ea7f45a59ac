"""The model and the batches that all GPU benchmarks measure, and what a token of them costs."""

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import scratch

QWEN2_1_5B = {
    "model_type": "qwen2",
    "vocab_size": 151936,
    "hidden_size": 1536,
    "intermediate_size": 8960,
    "num_hidden_layers": 28,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32768,
    "rope_theta": 1000000.0,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
}
"""Qwen2.5-1.5B's config.json; a linear layer's width, not its values, is what a benchmark needs, so weights are random."""
QWEN2_7B = QWEN2_1_5B | {
    "vocab_size": 152064,
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "tie_word_embeddings": False,
}
QWEN2_14B = QWEN2_7B | {
    "hidden_size": 5120,
    "intermediate_size": 13824,
    "num_hidden_layers": 48,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "initializer_range": 0.005,
}
"""With transformers' 0.02 rollouts in FP8 differed by 0.97 per token from the trainer (lease SS), and a job ends at 0.5: outputs of random weights in
proportion to this are what such differences scale with."""
QWEN3_30B_A3B = {
    "model_type": "qwen3_moe",
    "vocab_size": 151936,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "max_position_embeddings": 32768,
    "rope_theta": 1000000.0,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
}
TINY = {
    "model_type": "qwen2",
    "vocab_size": 8192,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
}
"""To try a command on CPU, where vLLM's attention wants heads of 32 or more."""
SMALL = QWEN2_1_5B | {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 8, "num_attention_heads": 8}
MODELS: dict[str, dict[str, Any]] = {
    "1.5b": QWEN2_1_5B,
    "7b": QWEN2_7B,
    "7b-14-layers": QWEN2_7B | {"num_hidden_layers": 14},
    "7b-22-layers": QWEN2_7B | {"num_hidden_layers": 22},
    "14b": QWEN2_14B,
    "30b-a3b-8-layers": QWEN3_30B_A3B | {"num_hidden_layers": 8},
    "30b-a3b-16-layers": QWEN3_30B_A3B | {"num_hidden_layers": 16},
    "30b-a3b": QWEN3_30B_A3B,
    "0.1b": SMALL,
    "tiny": TINY,
}
"""Cut to fewer layers: 4.3 B parameters; 6.2 B, the most that one GPU trains without adapters; 5.6 B, for two; 10.6 B, for four. `0.1b`: for what
takes many steps."""
MODEL = scratch.SHARED / "rljob-bench-1.5b"
TOKENIZER = ("tokenizer", "special_tokens", "chat_template")
"""How the names of its files begin."""
PEAK_FLOPS = 989e12
"""Dense bfloat16 of an H200 or H100 SXM, by its data sheet."""


@dataclass(frozen=True)
class Shape:
    """Sequences of one optimizer step and how they are fed."""

    name: str
    lengths: tuple[int, ...]
    tokens_per_micro_batch: int

    @property
    def tokens(self) -> int:
        return sum(self.lengths)

    def flops(self, model: dict[str, Any] = QWEN2_1_5B) -> float:
        """Of forward and backward: 6 per parameter that a token meets; of causal attention's two products 6 x layers x width x length^2."""
        attention = 6 * model["num_hidden_layers"] * attention_width(model)
        return 6.0 * activated_parameters(model) * self.tokens + attention * sum(n * n for n in self.lengths)


def attention_width(model: dict[str, Any]) -> int:
    """Of all queries of a token."""
    heads = model["num_attention_heads"]
    return heads * model.get("head_dim", model["hidden_size"] // heads)


def activated_parameters(model: dict[str, Any]) -> int:
    """Of the matrices that a token is multiplied with: the output layer, and of experts those that it chooses."""
    width, queries = model["hidden_size"], attention_width(model)
    keys = queries // model["num_attention_heads"] * model["num_key_value_heads"]
    feed_forward = 3 * width * model["intermediate_size"]
    if "num_experts" in model:
        experts = 3 * width * model["moe_intermediate_size"] * model["num_experts_per_tok"]
        feed_forward = experts + width * model["num_experts"]
    layer = 2 * width * queries + 2 * width * keys + feed_forward
    return model["num_hidden_layers"] * layer + width * model["vocab_size"]


def parameters(model: dict[str, Any]) -> int:
    """Those of `activated_parameters`, and the experts that a token does not choose."""
    one = 3 * model["hidden_size"] * model.get("moe_intermediate_size", 0) * model["num_hidden_layers"]
    return activated_parameters(model) + one * (model.get("num_experts", 0) - model.get("num_experts_per_tok", 0))


def adapter_bytes(model: dict[str, Any], rank: int) -> int:
    """Of LoRA in bfloat16 as vLLM takes it: an A and a B of its own for each of the seven matrices of a layer."""
    width, queries, inner = model["hidden_size"], attention_width(model), model["intermediate_size"]
    keys = queries // model["num_attention_heads"] * model["num_key_value_heads"]
    matrices = [
        (width, queries),
        (width, keys),
        (width, keys),
        (queries, width),
        (width, inner),
        (width, inner),
        (inner, width),
    ]
    return 2 * rank * model["num_hidden_layers"] * sum(map(sum, matrices))


def shapes() -> dict[str, Shape]:
    """`4x4096`: equal lengths. `packed`: 64 sequences of 200 to 2000 tokens, about 16k together in a micro-batch."""
    lengths = random.Random(0)
    return {
        "4x4096": Shape("4x4096", (4096,) * 4, 16384),
        "packed": Shape("packed", tuple(lengths.randint(200, 2000) for _ in range(64)), 16384),
    }


def model_of(size: str) -> Path:
    """The model of that name in MODELS with `tokenizer`, written once for all runs, none of which changes it."""
    return write_model(MODEL.with_name(f"rljob-bench-{size}"), MODELS[size])


def write_model(directory: Path = MODEL, shape: dict[str, Any] = QWEN2_1_5B) -> Path:
    """A Hugging Face directory with random weights in bfloat16, once."""
    return scratch.once(directory, lambda new: _write(new, shape))


def _write(directory: Path, shape: dict[str, Any]) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**shape), dtype=torch.bfloat16)
    model.cpu().save_pretrained(directory)  # which copies parameters of experts
    torch.cuda.empty_cache()  # or a server that this process starts next would lack it
    tokenizer(directory, shape["vocab_size"])


def tokenizer(model: Path, size: int) -> None:
    """A token per digit, and a name for every other id of the model."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: i for i, token in enumerate("0123456789")}
    vocabulary |= {f"<{i}>": i for i in range(len(vocabulary), size - 1)}
    vocabulary["<eos>"] = len(vocabulary)
    digits = Tokenizer(models.WordLevel(vocabulary))
    digits.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    PreTrainedTokenizerFast(tokenizer_object=digits, eos_token="<eos>").save_pretrained(model)
