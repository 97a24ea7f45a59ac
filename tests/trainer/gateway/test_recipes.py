"""Unchanged recipes of tinker-cookbook against a service on this machine, with a tiny model, and without a hub."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trainer.gateway.recipes import NAME, execute, metrics, save_model
from trainer.gateway.running import RunningService, running

pytestmark = [pytest.mark.slow, pytest.mark.extra]

SECONDS = 600


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
    execute(service.url, world, log, SECONDS, recipe, *RECIPES[recipe])
    saved = [json.loads(line) for line in (log / "checkpoints.jsonl").read_text().splitlines()]
    assert saved[-1]["name"] == "final" and saved[-1]["sampler_path"].startswith("tinker://")
    assert metrics(log, "grad_norm:mean") or recipe == "rl_loop"


def test_a_recipe_continues_from_the_checkpoint_that_it_saved(
    service: RunningService, world: Path, tmp_path: Path
) -> None:
    arguments = ["sl_loop", "batch_size=8", "max_length=256", "save_every=2", "learning_rate=1e-2", "max_steps=4"]
    execute(service.url, world, tmp_path, SECONDS, *arguments)
    losses = metrics(tmp_path, "train_mean_nll")
    assert len(losses) == 4 and losses[-1] < losses[0]
    saved = tmp_path / "checkpoints.jsonl"
    saved.write_text(saved.read_text().splitlines()[0] + "\n")
    (tmp_path / "metrics.jsonl").unlink()
    execute(service.url, world, tmp_path, SECONDS, *arguments)
    assert metrics(tmp_path, "train_mean_nll") == losses[2:]
