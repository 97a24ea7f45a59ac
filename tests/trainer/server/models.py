"""Tiny random models on disk, and Hugging Face's word on their log-probabilities."""

from functools import lru_cache
from pathlib import Path

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

VOCABULARY = 128
END = 1


def make(path: Path, seed: int, tied: bool = False) -> Path:
    """A model whose distribution is far from uniform, so that another model's log-probabilities differ clearly.

    Tied ones are Llamas: there vLLM keeps the output layer as a module of its own, which shares only the weight with the embedding.
    """
    torch.manual_seed(seed)
    config, architecture = (LlamaConfig, LlamaForCausalLM) if tied else (Qwen2Config, Qwen2ForCausalLM)
    model = architecture(
        config(
            vocab_size=VOCABULARY, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            max_position_embeddings=512, tie_word_embeddings=tied, eos_token_id=END, pad_token_id=0, bos_token_id=None,
        )
    )  # fmt: skip
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.15)
    model.save_pretrained(path)
    save_tokenizer(path)
    return path


def save_tokenizer(path: Path) -> None:
    words = {"<pad>": 0, "<end>": END} | {f"w{i}": i for i in range(2, VOCABULARY)}
    PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(words, unk_token="<pad>")), eos_token="<end>", pad_token="<pad>"
    ).save_pretrained(path)


def tensors(path: Path) -> list[tuple[str, torch.Tensor]]:
    """As a trainer exports them: Hugging Face names, a tied output layer left out."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    tied = model.config.tie_word_embeddings
    return [(k, v) for k, v in model.state_dict().items() if not (tied and k == "lm_head.weight")]


def log_probs(path: Path, prompt: tuple[int, ...], response: tuple[int, ...], temperature: float = 1.0) -> torch.Tensor:
    """[len(response)]: of each response token, by Hugging Face's implementation."""
    return distributions(path, prompt, response, temperature).gather(1, torch.tensor([*response])[:, None])[:, 0]


def distributions(
    path: Path, prompt: tuple[int, ...], response: tuple[int, ...], temperature: float = 1.0
) -> torch.Tensor:
    """[len(response), vocabulary]: log-probabilities of every token at the place of each response token, likewise."""
    with torch.no_grad():
        logits = _loaded(path)(torch.tensor([[*prompt, *response]])).logits[0, len(prompt) - 1 : -1] / temperature
    return logits.log_softmax(-1)


@lru_cache(maxsize=4)
def _loaded(path: Path) -> torch.nn.Module:
    """A test asks the same model about each of its responses."""
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
