"""Optimizer steps on the host train as those on the device, and write the same checkpoints."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from extra import extra_but
from rljob_api.spec import RLJobSpec
from rljob_trainer.machine import cpus
from rljob_trainer.megatron.compat.host_adam import HostAdam, cut, share_of_cpus
from rljob_trainer.megatron.memory import torch_optimizers
from trainer.megatron.gang import changed, equal, moments, run_engines, weights
from trainer.megatron.models import changed_samples, job, make_batch, make_model, train_step
from trainer.megatron.test_checkpoint import write

OPTIMIZER = {"learningRate": 1e-3, "epsilon": 1e-6}
"""With a smaller epsilon Adam makes weights of the rounding of gradients near 0."""
REPLAY: dict[str, Any] = {"batches": {"replay": "/recorded"}, "miniBatches": 2, "optimizer": OPTIMIZER}
ON_HOST = {"offload": {"update": True}}
EVERYTHING = {"offload": {"update": True, "parameters": True, "gradients": True}}
TWO: dict[str, Any] = {"nodes": 2}
LAYOUTS: dict[str, tuple[str, dict[str, Any]]] = {
    "DP2": ("qwen2", TWO),
    "DP2, overlap": ("qwen2", TWO | {"overlap": {"gradReduce": True, "paramGather": True}}),
    "TP2": ("qwen2", TWO | {"parallelism": {"tensor": 2}}),
    "PP2": ("qwen2", TWO | {"parallelism": {"pipeline": 2}}),
    "EP2": ("qwen3_moe", TWO | {"parallelism": {"expert": 2}}),
}
LORA = {"lora": {"rank": 4, "alpha": 8}}


def test_pieces_hold_every_number_once_and_no_more_than_they_may() -> None:
    assert list(cut([3, 0, 5, 1], 4)) == [[(0, slice(0, 3)), (2, slice(0, 1))], [(2, slice(1, 5))], [(3, slice(0, 1))]]
    assert list(cut([], 4)) == list(cut([0], 4)) == []


def test_ranks_of_a_pod_share_its_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()
    for ranks, expected in ((1, cpus()), (2 * cpus(), 1)):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
        with share_of_cpus():
            assert torch.get_num_threads() == expected
    assert torch.get_num_threads() == before


def test_parameters_without_a_gradient_and_pieces_of_a_parameter_are_updated_as_by_torch(
    megatron: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rljob_trainer.megatron.compat.host_adam.MOST", 4)
    settings: dict[str, Any] = {"lr": 0.1, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.1}
    ours = [
        torch.arange(float(n)).to(dtype) for n, dtype in ((3, torch.bfloat16), (9, torch.float32), (2, torch.float32))
    ]
    theirs = [torch.nn.Parameter(p.float().clone()) for p in ours]
    host, torchs = HostAdam([{"params": ours}], **settings), torch.optim.AdamW(theirs, **settings)
    for step in range(3):
        for mine, other in zip(ours[:2], theirs[:2], strict=True):
            mine.decoupled_grad = other.grad = torch.full((len(mine),), 0.5 + step)  # type: ignore[attr-defined]
        host.step()
        torchs.step()
    for mine, other in zip(ours, theirs, strict=True):
        assert torch.allclose(host.state[mine]["master_param"], other.detach(), atol=1e-6)
        assert torch.equal(mine, host.state[mine]["master_param"].to(mine.dtype))
    assert [float(host.state[p]["step"]) for p in ours] == [3.0, 3.0, 0.0]


def test_moments_in_bfloat16_are_the_nearest_to_those_that_a_step_computes(
    megatron: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against AdamW (Loshchilov and Hutter, arXiv 1711.05101, algorithm 2) in float64, from the moments of the step before."""
    monkeypatch.setattr("rljob_trainer.megatron.compat.host_adam.MOST", 16)
    rate, (b1, b2), epsilon, decay = 0.01, (0.9, 0.95), 1e-8, 0.1
    weights = torch.linspace(-2, 2, 41, dtype=torch.bfloat16)
    host = HostAdam([{"params": [weights]}], lr=rate, betas=(b1, b2), eps=epsilon, weight_decay=decay)
    host.moments = torch.bfloat16
    host.allocate()
    state = host.state[weights]
    random = torch.Generator().manual_seed(1)
    for step in range(1, 6):
        gradient = torch.randn(41, generator=random)
        w, m, v = (state[key].double() for key in ("master_param", "exp_avg", "exp_avg_sq"))
        m, v = b1 * m + (1 - b1) * gradient, b2 * v + (1 - b2) * gradient.double() ** 2
        w = w - rate * (decay * w + m / (1 - b1**step) / ((v / (1 - b2**step)).sqrt() + epsilon))
        weights.decoupled_grad = gradient  # type: ignore[attr-defined]
        host.step()
        assert torch.allclose(state["master_param"].double(), w, rtol=1e-5, atol=1e-6)
        for key, exact in (("exp_avg", m), ("exp_avg_sq", v)):
            assert state[key].dtype == torch.bfloat16
            assert ((state[key].double() - exact).abs() <= 1.001 * 2**-8 * exact.abs()).all()


def on_host(engine: Any) -> bool:
    return all(isinstance(inner, HostAdam) for inner in torch_optimizers(engine._policy.optimizer))


def steps(model: Path) -> Callable[[Any], Any]:
    """Losses and norms of three steps, and the weights afterwards."""
    batches = [make_batch(model, step) for step in (1, 2, 3)]

    def run(engine: Any) -> Any:
        assert on_host(engine) == engine._spec.trainer.offload.update
        metrics = [train_step(engine, batch) for batch in batches]
        return [m[f"train/{name}"] for m in metrics for name in ("loss", "grad_norm")], weights(engine)

    return run


def distance(a: Any, b: Any) -> float:
    """Largest difference of losses, norms and weights."""
    (ours, our_weights), (theirs, their_weights) = a, b
    apart = [float((w.float() - their_weights[name].float()).abs().max()) for name, w in our_weights.items()]
    return max(*(abs(x - y) for x, y in zip(ours, theirs, strict=True)), *apart)


def both(spec: RLJobSpec, here: dict[str, Any] | None = None) -> dict[str, RLJobSpec]:
    return {"device": spec, "host": changed(spec, trainer=here or ON_HOST)}


@pytest.mark.slow
@pytest.mark.parametrize("layout", extra_but(("DP2, overlap", "PP2", "EP2"), LAYOUTS))
def test_steps_on_the_host_train_as_those_on_the_device(megatron: None, tmp_path: Path, layout: str) -> None:
    kind, trainer = LAYOUTS[layout]
    model = make_model(tmp_path / "model", kind)
    specs = both(job(model, trainer=trainer, **REPLAY))
    found = run_engines(2, {name: (spec, steps(model)) for name, spec in specs.items()})
    assert distance(found["host"], found["device"]) < 1e-6


@pytest.mark.slow
def test_adapters_train_on_the_host_and_everything_else_may_be_offloaded(model: Path) -> None:
    specs = both(changed(job(model, tensor=2, **REPLAY), model=LORA), EVERYTHING)
    found = run_engines(2, {name: (spec, steps(model)) for name, spec in specs.items()})
    assert distance(found["host"], found["device"]) < 1e-6


@pytest.mark.slow
def test_weights_in_bfloat16_are_those_of_float32_on_the_host_rounded(model: Path) -> None:
    specs = both(job(model, data=2, dtype="bfloat16", **REPLAY), EVERYTHING)
    found = run_engines(2, {name: (spec, steps(model)) for name, spec in specs.items()})
    assert distance(found["host"], found["device"]) < 1e-2


@pytest.mark.slow
def test_steps_that_are_not_finite_leave_weights_and_moments_on_the_host_alone(model: Path) -> None:
    good = make_batch(model)
    bad = changed_samples(good, lambda sample: replace(sample, reward=math.nan))

    def run(engine: Any) -> Any:
        train_step(engine, good)
        before = weights(engine), moments(engine)
        skipped = train_step(engine, replace(bad, step=2))["train/skipped"]
        unchanged = equal(before, (weights(engine), moments(engine)))
        train_step(engine, replace(good, step=3))
        return skipped, unchanged, equal(before[0], weights(engine))

    spec = changed(job(model, tensor=2, onNonFinite="skip", **REPLAY), trainer=ON_HOST)
    assert run_engines(2, {"": (spec, run)})[""] == (2.0, True, False)


@pytest.mark.slow
def test_a_save_that_is_waited_for_copies_nothing_that_is_on_the_host(model: Path, tmp_path: Path) -> None:
    """However a parameter is cut into boxes: here at the boundary of two ranks, and gate from up."""

    def run(engine: Any) -> tuple[bool, bool]:
        train_step(engine, make_batch(model))
        states = [s for inner in torch_optimizers(engine._policy.optimizer) for s in inner.state.values()]
        kept = [t for s in states for t in s.values() if t.dim()]
        places = [range(t.data_ptr(), t.data_ptr() + t.nbytes) for t in kept]
        writing = engine.save(tmp_path / "saved", alongside=False)
        written = [t for _, _, (_, tensors) in writing._buckets for _, t in tensors]
        there = sum(t.nbytes for t in written if any(t.data_ptr() in place for place in places))
        writing.wait()
        assert writing.error is None
        writing.finish()
        return there == sum(t.nbytes for t in kept), there > 0

    spec = changed(job(model, data=2, dtype="bfloat16", **REPLAY), trainer=ON_HOST)
    assert run_engines(2, {"": (spec, run)})[""] == (True, True)


@pytest.mark.slow
def test_moments_in_bfloat16_are_resumed_bit_for_bit_and_taken_from_float32_and_back(
    model: Path, tmp_path: Path
) -> None:
    """Also in another layout, and from a save that copied nothing. A checkpoint has moments in the type in which they were kept."""
    batches = [make_batch(model, step) for step in (1, 2, 3)]
    less = {"optimizer": OPTIMIZER | {"momentsDtype": "bfloat16"}}
    specs = {
        name: changed(job(model, data=2, dtype="bfloat16", **(REPLAY | adam)), trainer=ON_HOST)
        for name, adam in (("narrow", less), ("wide", {}))
    }

    def interrupted(name: str) -> Callable[[Any], Any]:
        def run(engine: Any) -> Any:
            train_step(engine, batches[0])
            write(engine, tmp_path / name / "alone", alongside=False)
            write(engine, tmp_path / name / "alongside", alongside=True)
            return kinds(engine), rest(engine)

        return run

    def resumed(path: Path) -> Callable[[Any], Any]:
        def run(engine: Any) -> Any:
            engine.load(path)
            return kinds(engine), rest(engine)

        return run

    def kinds(engine: Any) -> set[torch.dtype]:
        states = (s for inner in torch_optimizers(engine._policy.optimizer) for s in inner.state.values())
        return {s[key].dtype for s in states for key in ("exp_avg", "exp_avg_sq")}

    def rest(engine: Any) -> Any:
        metrics = [train_step(engine, batch) for batch in batches[1:]]
        return [m[f"train/{name}"] for m in metrics for name in ("loss", "grad_norm")], weights(engine)

    wholes = {name: run_engines(2, {"": (spec, interrupted(name))})[""] for name, spec in specs.items()}
    assert [wholes[name][0] for name in ("narrow", "wide")] == [{torch.bfloat16}, {torch.float32}]
    sizes = {name: sum(f.stat().st_size for f in (tmp_path / name / "alone").rglob("*")) for name in specs}
    parameters = sum(w.numel() for w in wholes["wide"][1][1].values())
    assert sizes["wide"] - sizes["narrow"] == pytest.approx(4 * parameters, rel=0.01)
    narrow, wide = specs["narrow"], specs["wide"]
    for kind in ("alone", "alongside"):
        assert equal(run_engines(2, {"": (narrow, resumed(tmp_path / "narrow" / kind))})[""], wholes["narrow"])
    elsewhere = changed(narrow, trainer={"parallelism": {"tensor": 2}})
    for spec, path in ((elsewhere, "narrow"), (narrow, "wide"), (wide, "narrow")):
        there = run_engines(2, {"": (spec, resumed(tmp_path / path / "alone"))})[""]
        assert there[0] == ({torch.float32} if spec is wide else {torch.bfloat16})
        assert distance(there[1], wholes[path][1]) < 1e-2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("saved", "dtype"),
    [("host", "float32"), pytest.param("device", "float32", marks=pytest.mark.extra), ("host", "bfloat16")],
)
def test_a_checkpoint_of_either_way_is_resumed_bit_for_bit_and_by_the_other_way(
    model: Path, tmp_path: Path, saved: str, dtype: str
) -> None:
    """Also written without copying what is on the host, and in another layout."""
    batches = [make_batch(model, step) for step in (1, 2, 3, 4)]

    def interrupted(engine: Any) -> Any:
        for batch in batches[:2]:
            train_step(engine, batch)
        write(engine, tmp_path / "alone", alongside=False)
        write(engine, tmp_path / "alongside", alongside=True)
        return rest(engine)

    def resumed(name: str) -> Callable[[Any], Any]:
        def run(engine: Any) -> Any:
            engine.load(tmp_path / name)
            return rest(engine)

        return run

    def rest(engine: Any) -> Any:
        metrics = [train_step(engine, batch) for batch in batches[2:]]
        counts = {
            float(s["step"]) for inner in torch_optimizers(engine._policy.optimizer) for s in inner.state.values()
        }
        assert counts == {8.0}
        return [m[f"train/{name}"] for m in metrics for name in ("loss", "grad_norm")], weights(engine)

    specs = both(job(model, data=2, dtype=dtype, **REPLAY))
    (other,) = specs.keys() - {saved}
    elsewhere = changed(specs[other], trainer={"parallelism": {"tensor": 2}})
    whole = run_engines(2, {"": (specs[saved], interrupted)})[""]
    for name in ("alone", "alongside"):
        assert equal(run_engines(2, {"": (specs[saved], resumed(name))})[""], whole)
    near = 1e-6 if dtype == "float32" else 1e-2
    for spec in (specs[other], elsewhere):
        assert distance(run_engines(2, {"": (spec, resumed("alone"))})[""], whole) < near
