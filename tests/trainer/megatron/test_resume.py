"""What a checkpoint keeps when it is loaded into another layout. `pytest -s` prints the table of docs/checkpoints.md."""

import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from extra import extra_but
from rljob_api.spec import RLJobSpec
from rljob_trainer.wire.batch import Batch
from trainer.megatron.gang import changed
from trainer.megatron.models import job, make_batch, make_model, ranks_of, train_step
from trainer.megatron.test_checkpoint import write
from trainer.ranks import run_ranks

VOCABULARY = 161
"""Odd, so that tensor parallelism fills it up."""
MEASURES = ("train/loss", "train/kl", "train/entropy", "train/grad_norm", "critic/loss", "critic/grad_norm")
COLUMNS = ("job", "saved in", "loaded into", "metrics", "weights", "optimizer")
NAMES = {"tp": "tensor", "pp": "pipeline", "cp": "context", "ep": "expert"}
PPO = {"advantage": "gae", "gaeLambda": 0.95, "kl": {"coefficient": 0.1, "where": "reward"}}
PARTS = ["linear_q", "linear_k", "linear_v", "linear_fc1_gate", "linear_fc1_up"]
JOBS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "GRPO": ("qwen2", {}, {}),
    "PPO": ("qwen2", {"algorithm": PPO}, {"critic": {"optimizer": {"learningRate": 1e-3}}}),
    "MoE": ("qwen3_moe", {}, {}),
    "GLM-5": ("glm_moe_dsa", {}, {}),
    "LoRA": ("qwen2", {}, {"model": {"lora": {"rank": 4, "alpha": 8}}}),
    "LoRA of parts": ("qwen2", {}, {"model": {"lora": {"rank": 4, "alpha": 8, "targets": PARTS}}}),
    "MoE, LoRA": ("qwen3_moe", {}, {"model": {"lora": {"rank": 4, "alpha": 8}}}),
}
"""Family of the model, arguments of `job`, further sections of the spec."""


class Case(NamedTuple):
    job: str
    before: str
    after: str


CASES = [
    Case("GRPO", "tp2-pp1-dp1", "tp1-pp2-dp1"),
    Case("GRPO", "tp2-pp1-dp1", "tp2-pp1-dp2"),
    Case("GRPO", "tp2-pp2-dp1", "tp1-pp1-dp1"),
    Case("GRPO", "tp1-pp1-dp2", "tp2-pp1-dp1"),
    Case("GRPO", "tp1-pp1-dp2", "tp1-pp1-dp1"),
    Case("GRPO", "tp1-pp2-dp1", "tp2-pp1-dp2"),
    Case("GRPO", "tp1-pp2-dp1", "tp1-pp1-dp1-cp2"),
    Case("PPO", "tp1-pp1-dp2", "tp1-pp1-dp2"),
    Case("PPO", "tp1-pp1-dp2", "tp2-pp1-dp1"),
    Case("MoE", "tp1-pp1-dp2-ep2", "tp1-pp1-dp2-ep2"),
    Case("MoE", "tp1-pp1-dp2-ep2", "tp1-pp1-dp1"),
    Case("MoE", "tp1-pp1-dp2-ep2", "tp2-pp1-dp1"),
    Case("GLM-5", "tp1-pp1-dp2-ep2", "tp1-pp1-dp2-ep2"),
    Case("GLM-5", "tp1-pp1-dp2-ep2", "tp2-pp1-dp1"),
    Case("LoRA", "tp1-pp1-dp2", "tp1-pp1-dp2"),
    Case("LoRA", "tp1-pp1-dp2", "tp2-pp1-dp1"),
    Case("LoRA", "tp2-pp1-dp1", "tp1-pp2-dp1"),
    Case("LoRA", "tp2-pp1-dp1", "tp2-pp1-dp1"),
    Case("LoRA of parts", "tp1-pp1-dp2", "tp2-pp1-dp1"),
    Case("MoE, LoRA", "tp1-pp1-dp2-ep2", "tp1-pp1-dp2-ep2"),
    Case("MoE, LoRA", "tp1-pp1-dp2-ep2", "tp2-pp1-dp1"),
]


def test_the_table_in_the_docs_has_every_case() -> None:
    docs = Path(__file__).parents[3] / "docs" / "checkpoints.md"
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in docs.read_text().splitlines()]
    held = [Case(*row[:3]) for row in rows if len(row) == len(COLUMNS) and row[0] in JOBS]
    assert held == CASES


def spec_of(name: str, model: Path, layout: str) -> RLJobSpec:
    """Of one of JOBS in a layout such as `tp2-pp1-dp2-cp2`."""
    sizes = {key: int(size) for key, size in re.findall(r"([a-z]+)(\d+)", layout)}
    world = sizes["tp"] * sizes["pp"] * sizes["dp"] * sizes.get("cp", 1)
    parallelism = {NAMES[key]: size for key, size in sizes.items() if key in NAMES}
    _, arguments, sections = JOBS[name]
    trainer = {"nodes": world, "parallelism": parallelism}
    return changed(job(model, trainer=trainer, batches={"replay": "/r"}, **arguments), **sections)


def uninterrupted(spec: RLJobSpec, batches: list[Batch], directory: Path) -> Any:
    """Four steps, with a save after the second. Metrics of the last two, and the weights."""

    def on_a_rank() -> Any:
        from rljob_trainer.megatron.engine import Engine

        engine = Engine(spec, lambda: None)
        for batch in batches[:2]:
            train_step(engine, batch)
        write(engine, directory / "saved")
        metrics = train(engine, batches[2:])
        return metrics, {n: t.numpy() for n, t in engine.export()}

    return run_ranks(ranks_of(spec), on_a_rank)[0]


def train(engine: Any, batches: list[Batch]) -> list[float]:
    steps = [train_step(engine, batch) for batch in batches]
    return [step[name] for step in steps for name in MEASURES if name in step]


def resumed(spec: RLJobSpec, batches: list[Batch], directory: Path) -> Any:
    """The last two steps from a save, and whether the optimizer's state, saved again, is the saved one bit for bit."""

    def on_a_rank() -> Any:
        from rljob_trainer.megatron.engine import Engine

        engine = Engine(spec, lambda: None)
        engine.load(directory / "saved")
        write(engine, again := directory / engine.layout)
        kept = optimizer_kept(directory / "saved", again)
        metrics = train(engine, batches[2:])
        return metrics, {n: t.numpy() for n, t in engine.export()}, kept

    return run_ranks(ranks_of(spec), on_a_rank)[0]


def optimizer_kept(first: Path, second: Path) -> bool:
    """Main parameters, both moments of every parameter, and Adam's count; of the vocabulary, the part that both hold."""
    from megatron.core import dist_checkpointing

    def state(directory: Path) -> dict[str, Any]:
        tensors = dist_checkpointing.load_plain_tensors(str(directory))
        return {name: t for name, t in tensors.items() if ".optimizer.state." in name}

    def counts(directory: Path) -> set[float]:
        held = dist_checkpointing.load_common_state_dict(str(directory))
        optimizers = [held[name]["optimizer"] for name in held["names"]]
        parts = [p for o in optimizers for p in ([o] if "optimizer" in o else o.values())]
        return {group["step"] for p in parts for group in p["optimizer"]["param_groups"]}

    one, two = state(first), state(second)
    assert one.keys() == two.keys() and len(one) % 3 == 0
    rows = {name: min(len(one[name]), len(two[name])) for name in one}
    same = all((one[n][:r] == two[n][:r]).all() for n, r in rows.items())
    return same and counts(first) == counts(second) == {2}


@pytest.mark.slow
@pytest.mark.parametrize("name", extra_but(("GRPO", "PPO", "MoE", "LoRA"), JOBS))
def test_a_checkpoint_goes_on_in_another_layout(megatron: None, tmp_path: Path, name: str) -> None:
    model = make_model(tmp_path / "model", JOBS[name][0], tied=False, vocabulary=VOCABULARY)
    batches = [make_batch(model, step) for step in (1, 2, 3, 4)]
    cases = [c for c in CASES if c.job == name]
    runs = {b: uninterrupted(spec_of(name, model, b), batches, tmp_path / b) for b in {c.before for c in cases}}
    table = [COLUMNS, ("---",) * len(COLUMNS)]
    for case in cases:
        metrics, weights = runs[case.before]
        found = resumed(spec_of(name, model, case.after), batches, tmp_path / case.before)
        metric = max(abs(a - b) for a, b in zip(metrics, found[0], strict=True))
        weight = max(float(np.abs(weights[n] - found[1][n]).max()) for n in weights)
        exact = 0.0 if case.before == case.after else 1e-5
        assert metric <= exact and weight <= 10 * exact and found[2], (case, metric, weight, found[2])
        table.append((*case, f"{metric:.1e}", f"{weight:.1e}", "bit-equal"))
    print("\n" + "\n".join(f"| {' | '.join(row)} |" for row in table))
