"""A power cut before each fsync and after each rename of exports. Slow because of megatron's imports."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from api.specs import make_spec
from rljob_api import names
from rljob_trainer.checkpoint.exports import complete
from rljob_trainer.checkpoint.files import make_directory
from rljob_trainer.wire.weights.plan import GatherPhase
from trainer.checkpoint.disk import Cuts
from trainer.checkpoint.saving import open_store
from trainer.ranks import run_ranks

MODEL = {"config.json", "tokenizer.json", "chat_template.jinja", "model.safetensors"}
ADAPTERS = {"adapter_config.json", "adapter_model.safetensors", "chat_template.jinja"}


@pytest.mark.slow
def test_a_power_cut_at_any_point_leaves_whole_exports_only_and_those_that_were_reported(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (model / "tokenizer.json").write_text("{}")
    (tmp_path / "template").write_text("{{ messages }}")
    cuts, left = run_ranks(1, lambda: several_exports(tmp_path, model))[0]
    assert cuts > 20, "hardly anything was left behind: no test"
    assert left == ["step_2", "step_3"]


def several_exports(work: Path, model: Path) -> tuple[int, list[str]]:
    """First ones, one for which an old one goes, one in the place of another branch's, and the last with its adapters."""
    cuts = Cuts(work, look)
    root = cuts.top / "new" / "run"
    with cuts.disk.watched(cuts.cut):
        exports = exports_of(root, model, 1, cuts)
        for step in (1, 2, 3):
            exports.periodic(step)
        (names.exports_dir(root) / ".step_1.deleting-0").mkdir()  # of a kill
        exports = exports_of(root, model, 2, cuts)
        exports.periodic(2)
        exports.periodic(3)
        make_directory(names.step_dir(root, 4))
        exports.final(4)
        cuts.cut()
    return cuts.number, sorted(d.name for d in names.exports_dir(root).iterdir())


def look(left: Path, committed: str | None, when: str) -> None:
    """All that somebody takes for an export is whole; the last one that was reported is there."""
    root = left / "new" / "run"
    models = {**complete(root), 4: names.huggingface_dir(root, 4)}
    for step, directory in models.items():
        check(directory, MODEL, step, when)
    check(names.adapter_dir(root, 4), ADAPTERS, 4, when)
    assert committed is None or (root / committed).is_dir(), f"{committed}: {when}"


def check(directory: Path, files: set[str], step: int, when: str) -> None:
    if directory.exists():
        assert {f.name for f in directory.iterdir()} == files, f"{directory}: {when}"
        assert all(f.stat().st_size for f in directory.iterdir()), f"{directory}: {when}"
        (tensors,) = (load_file(f) for f in directory.glob("*.safetensors"))
        assert all(torch.equal(t, torch.full_like(t, step)) for t in tensors.values()), f"{directory}: {when}"


def exports_of(root: Path, model: Path, attempt: int, cuts: Cuts) -> Any:
    from rljob_trainer.megatron import compat

    compat.install()
    from rljob_trainer.rank.publication import Exports

    spec = make_spec(
        model={"path": str(model), "lora": {"rank": 2}},
        checkpoint={"path": str(root), "exportEverySteps": 1, "keepExports": 2},
        data={"chatTemplate": {"path": str(model.parent / "template")}},
        train={"steps": 4},
    )
    return Stepping(Exports(spec, engine := Engine(), Driver(root, cuts), open_store(root, attempt)), engine)


class Stepping:
    """Exports of an engine whose policy is its step."""

    def __init__(self, exports: Any, engine: "Engine"):
        self._exports, self._engine = exports, engine

    def periodic(self, step: int) -> None:
        self._engine.step = step
        self._exports.periodic(step)

    def final(self, step: int) -> None:
        self._engine.step = step
        self._exports.final(step)


class Engine:
    """Exports tensors full of its step."""

    step, draft = 0, None

    def heartbeat(self) -> None:
        pass

    def export_owned(self) -> list[GatherPhase]:
        return [GatherPhase(self._tensors(), True), GatherPhase(iter(()), False)]

    def _tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield "weight", torch.full((5,), float(self.step))

    def export_adapters(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield "q_proj.lora_A.weight", torch.full((2, 5), float(self.step))

    def hugging_face_config(self, config: dict[str, Any]) -> dict[str, Any]:
        return config


class Driver:
    """What it reports has to be left by all later cuts."""

    def __init__(self, root: Path, cuts: Cuts):
        self._root, self._cuts = root, cuts

    def exported(self, directory: Path) -> None:
        self._cuts.committed = str(directory.relative_to(self._root))
