"""What a service's clients ask of the ranks, against plain torch, and next to each other."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rljob_api.spec import RLJobSpec
from rljob_trainer.wire.service import CreateModel, ForwardBackward, OptimStep, RefusedWork
from trainer.megatron.clients import Oracle, Tensors, call, distance, service
from trainer.megatron.gang import equal
from trainer.megatron.models import make_model, ranks_of
from trainer.ranks import run_ranks

pytestmark = pytest.mark.slow

LAYOUTS: dict[str, dict[str, int]] = {
    "one rank": {},
    "DP2": {"data": 2},
    "TP2": {"tensor": 2},
    "PP2": {"pipeline": 2},
    "CP2": {"context": 2},
    "EP2": {"data": 2, "expert": 2},
}
RANK = 6
EPSILON = 1e-2
"""Adam divides by it and the gradient: numbers of gradients near 0 would be those of rounding."""


def step(rate: float = 1e-3, model: str = "a", **changes: Any) -> OptimStep:
    return OptimStep(model=model, seq=0, learning_rate=rate, **{"eps": EPSILON} | changes)


WORK = (
    call(1, "cross_entropy"),
    call(2, "importance_sampling"),
    step(2e-3, beta1=0.8, beta2=0.99),
    call(3, "ppo"),
    call(4, "cross_entropy", several=True),
    call(5, "dro", forward_only=True),
    call(6, "gspo", config={"clip_low_threshold": 0.1, "clip_high_threshold": 5.0}),
    step(2e-3, grad_clip_norm=0.5, weight_decay=0.1),
    call(7, "cispo"),
    call(8, "dro", count=1, config={"beta": 0.3}),
    step(),
    step(),  # nothing was accumulated
    call(9, "cross_entropy", forward_only=True),
)
"""Of one client: targets are not the next tokens, and weights have any sign."""


def on_ranks[T](spec: RLJobSpec, function: Callable[[Any], T]) -> T:
    """What the function makes of an engine of the spec, the same on all ranks."""

    def on_a_rank() -> T:
        from rljob_trainer.megatron.service import ServiceEngine

        return function(ServiceEngine(spec, lambda: None))

    first, *others = run_ranks(ranks_of(spec), on_a_rank)
    assert all(equal(first, other) for other in others), "the ranks differ"
    return first


def create(engine: Any, model: str = "a", rank: int = RANK, seed: int = 7, **changes: Any) -> None:
    engine.create(CreateModel(model=model, seq=0, rank=rank, seed=seed, **changes))


def do(engine: Any, work: ForwardBackward | OptimStep) -> tuple[dict[str, float], list[torch.Tensor]]:
    """Metrics and log-probabilities."""
    found = engine.forward_backward(work) if isinstance(work, ForwardBackward) else engine.optim_step(work)
    return dict(found.metrics), [torch.from_numpy(values) for values in found.log_probs]


def adapters(engine: Any, model: str = "a") -> Tensors:
    return {name: tensor.detach().clone() for name, tensor in engine.adapters(model)[1]}


def follow(
    engine: Any, works: Sequence[ForwardBackward | OptimStep], **changes: Any
) -> tuple[Tensors, list[Any], Tensors]:
    create(engine, **changes)
    return adapters(engine), [do(engine, work) for work in works], adapters(engine)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_numbers_of_a_client_are_those_of_plain_torch(model: Path, tmp_path: Path, layout: str) -> None:
    if layout == "EP2":
        model = make_model(tmp_path / "experts", "qwen3_moe", tied=False)
    numbers = on_ranks(service(model, **LAYOUTS[layout]), partial(follow, works=WORK))
    require_numbers_of_torch(model, WORK, *numbers)


@pytest.mark.parametrize(("left_out", "matrices"), [("mlp", "qkvo"), ("attention", ("gate", "up", "down"))])
def test_a_client_that_leaves_out_attention_or_mlp_trains_the_other_one_alone(
    model: Path, left_out: str, matrices: Sequence[str]
) -> None:
    changes: dict[str, Any] = {left_out: False}
    start, found, end = on_ranks(service(model, tensor=2), partial(follow, works=WORK[:4], **changes))
    assert {name.split(".")[-3] for name in end} == {f"{matrix}_proj" for matrix in matrices}
    require_numbers_of_torch(model, WORK[:4], start, found, end)


def require_numbers_of_torch(
    model: Path, works: Sequence[ForwardBackward | OptimStep], start: Tensors, found: list[Any], end: Tensors
) -> None:
    """`start`, `end`: adapters before and after the work."""
    oracle = Oracle(model, start, RANK)
    for work, (metrics, log_probs) in zip(works, found, strict=True):
        if isinstance(work, OptimStep):
            assert metrics == {"grad_norm:mean": pytest.approx(oracle.step(work), rel=3e-6)}
        else:
            expected, loss = oracle.run(work)
            scale = max(1.0, sum(float(e.abs().sum()) for e in expected))
            assert metrics == {"loss:sum": pytest.approx(loss, abs=1e-6 * scale)}
            assert [f.shape for f in log_probs] == [e.shape for e in expected]
            assert distance(log_probs, expected) < 1e-6, work
    assert distance([end[name] for name in oracle.adapters], [t.detach() for t in oracle.adapters.values()]) < 2e-5


def test_a_loss_of_the_clients_own_is_a_forward_pass_and_weights_made_of_it(model: Path) -> None:
    """As the SDK does it: forward, then cross entropy with weights -dL / d log p."""
    work = call(1, "cross_entropy")

    def halves(engine: Any) -> tuple[Tensors, float]:
        create(engine)
        _, log_probs = do(engine, replace(work, forward_only=True))
        weighted = [
            replace(datum, columns={"weights": -2 * values.numpy()})
            for datum, values in zip(work.data, log_probs, strict=True)
        ]
        start = adapters(engine)
        do(engine, replace(work, data=tuple(weighted)))
        return start, do(engine, step())[0]["grad_norm:mean"]

    start, norm = on_ranks(service(model, data=2), halves)
    oracle = Oracle(model, start, RANK)
    oracle.run(replace(work, loss="square"))
    assert norm == pytest.approx(oracle.step(step()), rel=3e-6)


def test_accumulating_calls_are_one_call_and_a_second_reduction_would_show(model: Path) -> None:
    """Over two data-parallel ranks. With a large epsilon, Adam's first step is proportional to the gradient."""
    whole, apply = call(1, "cross_entropy", count=6), partial(step, rate=1.0, eps=1e3)
    calls = [replace(whole, data=whole.data[i : i + 2]) for i in (0, 2, 4)]

    def accumulated(engine: Any) -> list[Tensors]:
        from rljob_trainer.megatron.provider import reduce_gradients

        found = []
        for name, works, reduces in (("one", [whole], False), ("three", calls, False), ("reduced", calls, True)):
            create(engine, name)
            engine._model.config.finalize_model_grads_func = reduce_gradients if reduces else None
            for work in works:
                do(engine, replace(work, model=name))
            do(engine, apply(model=name))
            found.append({n: t for n, t in adapters(engine, name).items() if n.endswith("lora_B.weight")})
        return found

    one, three, reduced = (list(t.values()) for t in on_ranks(service(model, data=2), accumulated))
    assert distance(three, one) < 1e-6
    assert distance(reduced, one) > 0.1, "the negative control"


CLIENTS: dict[str, tuple[dict[str, Any], list[ForwardBackward | OptimStep]]] = {
    "a": (
        {"rank": 32, "seed": 1},
        [call(1, "cross_entropy"), call(2, "ppo"), step(1e-2), call(3, "cispo"), step(eps=1e-12), call(4, "ppo")],
    ),
    "b": (
        {"rank": 8, "seed": 1, "mlp": False},
        [step(model="b"), call(5, "dro"), step(weight_decay=0.1), call(6, "gspo"), call(7, "ppo"), step(1e-2)],
    ),
    "c": (
        {"rank": 1, "seed": 2, "attention": False},
        [call(8, "cross_entropy", several=True), call(1, "ppo"), step(1e-2), call(2, "ppo"), step(), step()],
    ),
}
"""Who changes places in the middle of accumulating."""


@pytest.mark.parametrize(("dtype", "layout"), [("float32", {"tensor": 2}), ("bfloat16", {"data": 2})])
def test_clients_side_by_side_have_the_bits_that_each_has_alone(
    model: Path, dtype: str, layout: dict[str, int]
) -> None:
    spec = service(model, dtype, max_rank=32, **layout)

    def side_by_side(engine: Any, names: str) -> dict[str, Any]:
        for name in names:
            create(engine, name, **CLIENTS[name][0])
        found = {name: [] for name in names}
        for turn in range(6):
            for name in names:
                found[name].append(do(engine, replace(CLIENTS[name][1][turn], model=name)))
        return {name: (found[name], adapters(engine, name)) for name in names}

    together = on_ranks(spec, partial(side_by_side, names="abc"))
    for name in "abc":
        alone = on_ranks(spec, partial(side_by_side, names=name))
        assert equal(alone[name], together[name]), name
        sizes = {n.split(".")[-3]: t.shape for n, t in together[name][1].items() if n.endswith("lora_A.weight")}
        trained = {"a": {"q_proj", "gate_proj"}, "b": {"q_proj"}, "c": {"gate_proj"}}[name]
        assert trained == sizes.keys() & {"q_proj", "gate_proj"}
        assert {shape[0] for shape in sizes.values()} == {CLIENTS[name][0]["rank"]}


def test_what_pads_a_small_rank_stays_zero(model: Path) -> None:
    def padding(engine: Any) -> float:
        create(engine, rank=3)
        for seed in (1, 2):
            do(engine, call(seed, "cross_entropy"))
            do(engine, step(1e-1, eps=1e-12, weight_decay=0.1))
        whole = dict(engine._model.export_adapters())
        assert {min(t.shape) for t in whole.values()} == {8}, "spec.service.maxRank"
        rest = [t[3:] if name.endswith("lora_A.weight") else t[:, 3:] for name, t in whole.items()]
        return max(float(t.abs().max()) for t in rest)

    assert on_ranks(service(model), padding) == 0.0


def test_what_a_client_gets_wrong_is_refused_and_changes_nothing(model: Path) -> None:
    good = call(1, "cross_entropy")
    columns = {"weights": np.zeros(65, np.float32)}
    long = replace(good.data[0], tokens=np.zeros(65, np.int32), targets=np.zeros(65, np.int64), columns=columns)
    infinite = replace(good.data[0], columns={"weights": np.full(len(good.data[0].tokens), 3e38, np.float32)})

    def refusals(engine: Any) -> tuple[list[str], bool]:
        create(engine)
        before, found = adapters(engine), []
        attempts: list[Callable[[], Any]] = [
            lambda: create(engine),
            lambda: create(engine, "b", rank=9),
            lambda: create(engine, "b", rank=0),
            lambda: create(engine, "b", unembed=True),
            lambda: create(engine, "b", attention=False, mlp=False),
            lambda: do(engine, replace(good, model="b")),
            lambda: do(engine, replace(good, loss="stable_reinforce")),
            lambda: do(engine, replace(good, data=(long,))),
            lambda: do(engine, step(eps=0.0)),
            lambda: do(engine, step(float("nan"))),
            lambda: do(engine, step(1e38)),
            lambda: (do(engine, replace(good, data=(infinite,))), do(engine, step())),
        ]
        for attempt in attempts:
            with pytest.raises(RefusedWork) as refused:
                attempt()
            found.append(str(refused.value))
        unchanged = equal(before, adapters(engine))
        assert do(engine, step())[0] == {"grad_norm:mean": 0.0}, "nothing was accumulated"
        create(engine, "b")
        create(engine, "c")
        with pytest.raises(RefusedWork, match="there are 3 models already"):
            create(engine, "d")
        engine.keep(("b", "c"))
        create(engine, "d")
        return found, unchanged

    messages, unchanged = on_ranks(service(model), refusals)
    expected = [
        "there is a model a already",
        "rank 9 is not between 1 and 8",
        "rank 0 is not between",
        "the output layer has no adapters",
        "nothing would be trained",
        "there is no model b",
        "the loss stable_reinforce is not served",
        "a sample has 65 tokens, more than a micro-batch of 64 can hold",
        "eps is 0.0",
        "learning_rate is nan",
        "learning_rate is 1e+38",
        "no step was made: the norm of the gradient is",
    ]
    assert unchanged
    for message, start in zip(messages, expected, strict=True):
        assert message.startswith(start)
