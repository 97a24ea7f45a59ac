"""The ranks' loop of a service, asked over the socket that they have to the driver."""

import asyncio
import hashlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rljob_api.protocol import Control, Resume
from rljob_api.rules.lora import WEIGHTS
from rljob_api.spec import RLJobSpec
from rljob_trainer.driver.server import serve
from rljob_trainer.rank import main as rank
from rljob_trainer.wire.batch import Array
from rljob_trainer.wire.calls import handlers
from rljob_trainer.wire.channel import Arrays, listen
from rljob_trainer.wire.gateway import decode_result, encode
from rljob_trainer.wire.rollout_server import DIGEST
from rljob_trainer.wire.service import (
    CreateModel,
    ForwardBackward,
    KeepModels,
    LoadState,
    NextWork,
    OptimStep,
    SaveForSampler,
    SaveState,
    ServiceCalls,
    Work,
    WorkFailure,
    WorkResult,
)
from trainer.megatron.clients import call, distance, service
from trainer.megatron.models import make_model, ranks_of
from trainer.ranks import run_ranks

pytestmark = pytest.mark.slow

CREATE = CreateModel(model="a", seq=0, rank=4, seed=3)
STEP = OptimStep(model="a", seq=2, learning_rate=1e-2, eps=1e-3)
PASS, FURTHER = call(1, "cross_entropy"), call(2, "ppo")
PROBE = replace(call(3, "cross_entropy"), forward_only=True)


@dataclass
class Asking(ServiceCalls):
    """A driver that has a list of work."""

    works: list[Work]
    results: list[WorkResult | WorkFailure] = field(default_factory=list)
    backend: str = ""
    idle: bool = True

    def heartbeat(self, count: int) -> None:
        pass

    def awaiting(self, what: str) -> None:
        pass

    async def ready(self, backend: str) -> None:
        self.backend = backend

    async def next(self) -> NextWork:
        self.idle = not self.idle
        if not self.idle:
            return {}
        if len(self.results) == len(self.works):
            return {"over": "drained"}
        body = np.frombuffer(encode(self.works[len(self.results)]), np.uint8)
        return Arrays({"work": len(body)}, [body])  # type: ignore[return-value]

    async def done(self, arrays: dict[str, Array]) -> None:
        self.results.append(decode_result(arrays["result"].tobytes()))

    async def end(self) -> None:
        pass


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rank.prepare()
    return make_model(tmp_path_factory.mktemp("base") / "model")


def results_of(spec: RLJobSpec, directory: Path, works: Sequence[Work]) -> list[Any]:
    """What comes of the work, by real ranks. `directory`: of the attempt; a new one."""
    directory.mkdir()
    root = directory.parent / "run"
    spec = spec.model_copy(update={"checkpoint": spec.checkpoint.model_copy(update={"path": str(root)})})
    control = Control(name="demo", namespace="n", job_uid="u", attempt=1, resume=Resume(policy="auto"), spec=spec)

    def on_a_rank() -> list[Any]:
        from rljob_trainer.rank.service import run

        driver = Asking(list(works))
        if torch.distributed.get_rank() == 0:
            listener, (calls, notices) = listen(directory / "driver.sock"), handlers(ServiceCalls, driver)
            served = threading.Thread(target=lambda: asyncio.run(serve(listener, calls, notices)))
            served.start()
        assert run(directory, control) == "drained"
        if torch.distributed.get_rank() == 0:
            served.join()
            assert driver.backend
        return driver.results

    return run_ranks(ranks_of(spec), on_a_rank)[0]


def log_probs(result: WorkResult) -> list[torch.Tensor]:
    return [torch.tensor(values) for values in result.log_probs]


def test_a_snapshot_is_what_the_peft_library_makes_of_it(base: Path, tmp_path: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    path = tmp_path / "snapshots" / "one"
    snapshot = SaveForSampler(model="a", seq=3, path=str(path))
    works = [CREATE, PASS, STEP, snapshot, replace(snapshot, seq=4), PROBE]
    *_, saved, again, probed = results_of(service(base, tensor=2), tmp_path / "attempt", works)
    assert isinstance(saved, WorkResult)
    assert (path / DIGEST).read_text() == hashlib.sha256((path / WEIGHTS).read_bytes()).hexdigest()
    assert again == WorkFailure(message=f"{path} exists already")
    assert [p.name for p in path.parent.iterdir()] == ["one"], "nothing else is left there"
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), path).eval()
    expected = []
    for datum in PROBE.data:
        with torch.no_grad():
            logits = model(torch.tensor(datum.tokens)[None]).logits[0]
        expected.append(logits.log_softmax(-1).gather(-1, torch.tensor(datum.targets)[:, None])[:, 0])
    assert distance(log_probs(probed), expected) < 1e-6


def test_refused_work_fails_alone(base: Path, tmp_path: Path) -> None:
    wrong: list[Work] = [
        replace(PASS, loss="stable_reinforce"),
        replace(PASS, model="b"),
        replace(STEP, eps=0.0),
        LoadState(model="a", seq=3, path=str(tmp_path / "nowhere"), optimizer=True),
    ]
    right: list[Work] = [CREATE, PASS, STEP, PROBE]
    ends: list[Work] = [KeepModels(models=("a",)), PROBE, KeepModels(models=()), PROBE]
    among = [CREATE, *wrong, PASS, *wrong, STEP, *wrong, PROBE, *ends]
    alone = results_of(service(base), tmp_path / "alone", right)
    found = results_of(service(base), tmp_path / "among", among)
    failures = [r for r in found if isinstance(r, WorkFailure)]
    assert len(failures) == 3 * len(wrong) + 1 and {f.category for f in failures} == {"user"}
    assert failures[3].message == f"{tmp_path}/nowhere holds no state of a model"
    assert failures[-1].message == "there is no model a"
    kept = [encode(r) for r in found if isinstance(r, WorkResult)][: len(right)]
    assert kept == [encode(r) for r in alone]


@pytest.mark.parametrize(("before", "after"), [({"tensor": 2}, {"tensor": 2}), ({"tensor": 2}, {"data": 2})])
def test_a_saved_model_continues_under_another_name_and_in_another_layout(
    base: Path, tmp_path: Path, before: dict[str, int], after: dict[str, int]
) -> None:
    path = str(tmp_path / "states" / "one")
    rest: list[ForwardBackward | OptimStep] = [FURTHER, STEP, PROBE]
    first = [CREATE, PASS, STEP, SaveState(model="a", seq=3, path=path)]
    *_, uninterrupted = results_of(service(base, **before), tmp_path / "first", [*first, *rest])
    other = replace(CREATE, model="b", seed=9)
    load = LoadState(model="b", seq=0, path=path, optimizer=True)
    works: list[Work] = [
        other,
        replace(PASS, model="b"),  # what it has accumulated is dropped
        load,
        *(replace(work, model="b") for work in rest),
        replace(other, model="c"),
        replace(load, model="c", optimizer=False),
        *(replace(work, model="c") for work in rest),
        replace(other, model="d", rank=3),
        replace(load, model="d"),
    ]
    results = results_of(service(base, **after), tmp_path / "second", works)
    continued, anew, refused = results[5], results[10], results[-1]
    if before == after:
        assert encode(continued) == encode(uninterrupted)
    assert distance(log_probs(continued), log_probs(uninterrupted)) < 2e-6
    assert distance(log_probs(anew), log_probs(uninterrupted)) > 1e-4, "without the moments it is another model"
    assert refused.message == (
        f"{path} has rank 4, adapters of attention and mlp, and the model rank 3, adapters of attention and mlp"
    )
