"""Recipes of tinker-cookbook as they are, without a hub: the cookbook, models whose tokens are bytes, and a recipe's process.

The cookbook is installed without what it needs, since one of that is in no index: what these recipes import is added by name.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from trainer.agents.libraries import packages

NAME = "Qwen/Qwen3-8B"
"""Recipes choose how to write a chat by the name of the model, so that it has to be one that they know."""
COOKBOOK = ("tinker-cookbook==0.6.1", "chz", "blobfile", "lxml", "pyrage", "pylatexenc", "termcolor")
CHAT = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SMALL = {"hidden_size": 64, "intermediate_size": 128}


def save_model(path: Path, words: Sequence[str] = (), seed: int = 0, **shape: Any) -> None:
    """A random Qwen3 whose tokens are bytes, and `words`, which make prompts shorter."""
    letters = {character: i for i, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    bytes_of = Tokenizer(models.BPE(vocab=letters, merges=[]))
    bytes_of.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bytes_of.decoder = decoders.ByteLevel()
    ends = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    further = ["<|im_start|>", "<think>", "</think>"]
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bytes_of, additional_special_tokens=further, **ends)
    tokenizer.add_tokens(list(words))
    tokenizer.chat_template = CHAT
    tokenizer.save_pretrained(path)
    torch.manual_seed(seed)
    layers = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
    size = len(tokenizer) + -len(tokenizer) % 8
    config = Qwen3Config(vocab_size=size, max_position_embeddings=4096, **layers | SMALL | shape)
    config.eos_token_id, config.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
    Qwen3ForCausalLM(config).float().save_pretrained(path)


def execute(url: str, world: Path, log: Path, seconds: float, recipe: str, *arguments: str) -> str:
    """A recipe's output. `world`: a directory in which the hub's names of model and data sets are paths."""
    known = {"TINKER_BASE_URL": url, "TINKER_API_KEY": "tml-any", "TINKER_TELEMETRY": "0"}
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(world / "cache")}
    environment = os.environ | known | offline | {"PYTHONPATH": str(packages(*COOKBOOK)), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", f"tinker_cookbook.recipes.{recipe}", f"model_name={NAME}", f"log_path={log}"]
    done = subprocess.run(
        [*command, *arguments], cwd=world, env=environment, capture_output=True, text=True, timeout=seconds, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout + done.stderr


def metrics(log: Path, name: str) -> list[float]:
    found = [json.loads(line) for line in (log / "metrics.jsonl").read_text().splitlines()]
    return [line[name] for line in found if name in line]
