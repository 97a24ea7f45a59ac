"""The model and the batches that all GPU benchmarks measure, and what a token of them costs."""

import random
import tempfile
from dataclasses import dataclass
from pathlib import Path

QWEN2_1_5B = {
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
MODELS = {"1.5b": QWEN2_1_5B, "7b": QWEN2_7B, "7b-14-layers": QWEN2_7B | {"num_hidden_layers": 14}}
"""The last: 4.3 B parameters, which one GPU trains."""
MODEL = Path(tempfile.gettempdir()) / "rljob-bench-1.5b"
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

    def flops(self, parameters: int) -> float:
        """Of forward and backward: 6 per parameter and token, and 6 x layers x width x length^2 / 2 x 2 for causal attention's two products."""
        attention = 6 * QWEN2_1_5B["num_hidden_layers"] * QWEN2_1_5B["hidden_size"]
        return 6.0 * parameters * self.tokens + attention * sum(n * n for n in self.lengths)


def shapes() -> dict[str, Shape]:
    """`4x4096`: equal lengths. `packed`: 64 sequences of 200 to 2000 tokens, about 16k together in a micro-batch."""
    lengths = random.Random(0)
    return {
        "4x4096": Shape("4x4096", (4096,) * 4, 16384),
        "packed": Shape("packed", tuple(lengths.randint(200, 2000) for _ in range(64)), 16384),
    }


def model_of(size: str) -> Path:
    """The model of that name in MODELS, written once."""
    return write_model(MODEL.with_name(f"rljob-bench-{size}"), MODELS[size])


def write_model(directory: Path = MODEL, shape: dict = QWEN2_1_5B) -> Path:
    """A Hugging Face directory with random weights in bfloat16, once."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    if not (directory / "config.json").is_file():
        with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
            torch.manual_seed(0)
            model = Qwen2ForCausalLM(Qwen2Config(**shape)).to(torch.bfloat16)
        model.save_pretrained(directory)
    return directory
