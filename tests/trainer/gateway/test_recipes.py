"""Unchanged recipes of tinker-cookbook against a service on this machine, with a tiny model, and without a hub.

The cookbook is installed without what it needs, since one of that is in no index: what these recipes import is added by name.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from trainer.agents.libraries import packages
from trainer.gateway.running import RunningService, running

pytestmark = [pytest.mark.slow, pytest.mark.extra]

NAME = "Qwen/Qwen3-8B"
"""Recipes choose how to write a chat by the name of the model, so that it has to be one that they know."""
COOKBOOK = ("tinker-cookbook==0.6.1", "chz", "blobfile", "lxml", "pyrage", "pylatexenc", "termcolor")
SECONDS = 600
CHAT = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in which the hub's names of model and data sets are paths."""
    root = tmp_path_factory.mktemp("world")
    save_model(root / NAME)
    sums = [
        {"question": f"What is {a} + {b}?", "answer": f"{a}+{b}={a + b}\n#### {a + b}"}
        for a in range(16)
        for b in range(16)
    ]
    save_rows(root / "openai/gsm8k/main", sums)
    files = "".join(f"  - split: {split}\n    path: main/{split}.jsonl\n" for split in ("train", "test"))
    (root / "openai/gsm8k/README.md").write_text(f"---\nconfigs:\n- config_name: main\n  data_files:\n{files}---\n")
    save_rows(root / "HuggingFaceH4/no_robots", [chat(i) for i in range(160)])
    return root


def save_model(path: Path) -> None:
    """A random Qwen3 whose tokens are bytes."""
    words = {character: i for i, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    bytes_of = Tokenizer(models.BPE(vocab=words, merges=[]))
    bytes_of.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bytes_of.decoder = decoders.ByteLevel()
    ends = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    further = ["<|im_start|>", "<think>", "</think>"]
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bytes_of, additional_special_tokens=further, **ends)
    tokenizer.chat_template = CHAT
    tokenizer.save_pretrained(path)
    torch.manual_seed(0)
    shape = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "head_dim": 32,
    }
    size = len(tokenizer) + -len(tokenizer) % 8
    config = Qwen3Config(vocab_size=size, num_key_value_heads=2, max_position_embeddings=4096, **shape)
    config.eos_token_id, config.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
    Qwen3ForCausalLM(config).float().save_pretrained(path)


def save_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.mkdir(parents=True)
    for split in ("train", "test"):
        (path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def chat(i: int) -> dict[str, Any]:
    said = [{"role": "user", "content": f"Say {i}"}, {"role": "assistant", "content": f"{i}."}]
    return {"prompt": f"Say {i}", "prompt_id": str(i), "category": "x", "messages": said}


@pytest.fixture(scope="module")
def service(world: Path) -> Iterator[RunningService]:
    with running(world, world / NAME, service={"name": NAME, "maxTokens": 2048, "maxRank": 32}) as found:
        yield found


def execute(service: RunningService, world: Path, log: Path, recipe: str, *arguments: str) -> str:
    """A recipe's output."""
    known = {"TINKER_BASE_URL": service.url, "TINKER_API_KEY": "tml-any", "TINKER_TELEMETRY": "0"}
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(world / "cache")}
    environment = os.environ | known | offline | {"PYTHONPATH": str(packages(*COOKBOOK)), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", f"tinker_cookbook.recipes.{recipe}", f"model_name={NAME}", f"log_path={log}"]
    done = subprocess.run(
        [*command, *arguments], cwd=world, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout + done.stderr


def metrics(log: Path, name: str) -> list[float]:
    found = [json.loads(line) for line in (log / "metrics.jsonl").read_text().splitlines()]
    return [line[name] for line in found if name in line]


RECIPES = {
    "rl_loop": ["batch_size=4", "group_size=2", "max_tokens=6", "max_steps=2", "loss_fn=importance_sampling"],
    "rl_basic": ["max_steps=1", "max_tokens=4"],
    "sl_basic": ["max_steps=1"],
    "math_rl.train": [
        "env=arithmetic", "group_size=2", "groups_per_batch=4", "max_steps=2", "max_tokens=5", "eval_every=0", "loss_fn=importance_sampling",
    ],
    "multiplayer_rl.guess_number.train": ["batch_size=4", "group_size=2", "max_steps=1", "max_tokens=8", "eval_every=0"],
    "preference.shorter.train": ["batch_size=2", "group_size=4", "max_steps=1", "max_tokens=8", "eval_every=0"],
}  # fmt: skip
"""By recipe: its arguments. The rest is each recipe's own."""


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_runs_to_its_end_and_saves_what_it_has_learnt(
    service: RunningService, world: Path, tmp_path: Path, recipe: str
) -> None:
    log = tmp_path / "log"
    execute(service, world, log, recipe, *RECIPES[recipe])
    saved = [json.loads(line) for line in (log / "checkpoints.jsonl").read_text().splitlines()]
    assert saved[-1]["name"] == "final" and saved[-1]["sampler_path"].startswith("tinker://")
    assert metrics(log, "grad_norm:mean") or recipe == "rl_loop"


def test_a_recipe_continues_from_the_checkpoint_that_it_saved(
    service: RunningService, world: Path, tmp_path: Path
) -> None:
    arguments = ["sl_loop", "batch_size=8", "max_length=256", "save_every=2", "learning_rate=1e-2", "max_steps=4"]
    execute(service, world, tmp_path, *arguments)
    losses = metrics(tmp_path, "train_mean_nll")
    assert len(losses) == 4 and losses[-1] < losses[0]
    saved = tmp_path / "checkpoints.jsonl"
    saved.write_text(saved.read_text().splitlines()[0] + "\n")
    (tmp_path / "metrics.jsonl").unlink()
    execute(service, world, tmp_path, *arguments)
    assert metrics(tmp_path, "train_mean_nll") == losses[2:]
