"""Which checkpoints and exports the driver copies, on a store that is a directory."""

import asyncio
import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from rljob_api import names
from rljob_api.spec.run import CheckpointSpec
from rljob_trainer.checkpoint.manifest import CheckpointManifest, fingerprints
from rljob_trainer.driver import uploads
from rljob_trainer.driver.uploads import Uploads
from rljob_trainer.sources import fetch
from rljob_trainer.sources.upload import ObjectStore


def checkpoint(root: Path, step: int, content: bytes = b"weights") -> Path:
    """With an export next to its files, which the manifest does not list."""
    directory = names.step_dir(root, step)
    (directory / "megatron").mkdir(parents=True)
    (directory / "megatron/shard").write_bytes(content)
    files = fingerprints(directory)
    fixed: dict[str, Any] = {
        "layout": "tp1",
        "digest": "d",
        "data": {},
        "seq": 1,
        "attempt": 1,
        "job_uid": "u",
    }
    manifest = CheckpointManifest(**fixed, step=step, files=files, parent=None, model="m", time=0.0)
    names.manifest_file(directory).write_text(json.dumps(asdict(manifest)))
    export(names.huggingface_dir(root, step))
    return directory


def export(directory: Path) -> Path:
    directory.mkdir(parents=True)
    (directory / "config.json").write_text("{}")
    (directory / "model.safetensors").write_bytes(b"tensors")
    return directory


class Run:
    """A run's directory, its store, and what was said to be copied."""

    def __init__(self, directory: Path) -> None:
        self.root, self.store = directory / "run", directory / "store"
        self.root.mkdir()
        self.copied: list[int] = []

    def uploads(self) -> Uploads:
        spec = CheckpointSpec.model_validate({"path": str(self.root), "upload": f"file://{self.store}"})
        return Uploads(spec, lambda step, seconds: self.copied.append(step))

    def there(self) -> set[str]:
        return {str(f.relative_to(self.store)) for f in self.store.rglob("*") if f.is_file()} - {".rljob-writable"}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


async def all_done(found: Uploads) -> None:
    async with asyncio.timeout(60):
        while not found.done():  # noqa: ASYNC110 - as rank 0 asks
            await asyncio.sleep(0.01)


async def test_a_checkpoint_goes_without_the_export_in_it_which_goes_when_it_is_complete(run: Run) -> None:
    found = run.uploads()
    await found.begin([])
    directory = checkpoint(run.root, 2)
    found.checkpoint(directory)
    await all_done(found)
    assert run.there() == {"global_step_2/megatron/shard", "global_step_2/manifest.json"}
    found.export(names.huggingface_dir(run.root, 2))
    await all_done(found)
    assert run.there() >= {"global_step_2/huggingface/config.json", "global_step_2/huggingface/model.safetensors"}
    assert run.copied == [2]


async def test_the_next_attempt_copies_what_is_not_there_and_nothing_else(run: Run) -> None:
    before = run.uploads()
    await before.begin([])
    before.checkpoint(checkpoint(run.root, 2))
    await all_done(before)
    export(names.export_dir(run.root, 3))
    export(names.exports_dir(run.root) / "step_5.tmp")
    found = run.uploads()
    await found.begin([names.step_dir(run.root, 2), checkpoint(run.root, 4)])
    await all_done(found)
    assert run.copied == [2, 4]
    assert {"global_step_4/manifest.json", "exports/step_3/config.json"} <= run.there()
    assert not (run.store / "exports/step_5.tmp").exists(), "it is being written"


async def test_a_step_that_was_saved_again_takes_the_place_of_the_old_one(run: Run) -> None:
    found = run.uploads()
    await found.begin([checkpoint(run.root, 2)])
    await all_done(found)
    shutil.rmtree(names.step_dir(run.root, 2))
    found.checkpoint(checkpoint(run.root, 2, content=b"another branch"))
    await all_done(found)
    assert (run.store / "global_step_2/megatron/shard").read_bytes() == b"another branch"


async def test_a_checkpoint_that_is_deleted_meanwhile_holds_up_nothing(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, kept = checkpoint(run.root, 2), checkpoint(run.root, 4)
    monkeypatch.setattr(uploads, "ObjectStore", deleting(gone))
    found = run.uploads()
    await found.begin([gone, kept])
    await all_done(found)
    assert run.copied == [4]


def deleting(directory: Path) -> Callable[..., ObjectStore]:
    """A store at whose first copy `keepLast` deletes a directory of the run."""

    class Deleting(ObjectStore):
        def copy(self, *arguments: object) -> None:
            shutil.rmtree(directory, ignore_errors=True)
            super().copy(*arguments)  # type: ignore[arg-type]

    return Deleting


async def test_a_store_that_fails_is_tried_again_at_the_end_and_then_named(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "FIRST_WAIT_SECONDS", 0.001)
    found = run.uploads()
    await found.begin([])
    (run.store / "global_step_2").write_text("in the way of a directory")
    found.checkpoint(checkpoint(run.root, 2))
    with pytest.raises(OSError, match="global_step_2"):
        await all_done(found)
    again = run.uploads()
    (run.store / "global_step_2").unlink()
    await again.begin([names.step_dir(run.root, 2)])
    await all_done(again)
    assert run.copied == [2]


async def test_a_drain_leaves_the_rest_to_the_next_attempt(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "FIRST_WAIT_SECONDS", 0.001)
    found = run.uploads()
    await found.begin([])
    found.checkpoint(checkpoint(run.root, 2))
    await found.stop()
    assert "global_step_2/manifest.json" not in run.there() or run.copied == [2]


async def test_without_a_store_nothing_is_copied(run: Run) -> None:
    found = Uploads(CheckpointSpec.model_validate({"path": str(run.root)}), lambda step, seconds: None)
    await found.begin([checkpoint(run.root, 2)])
    found.checkpoint(names.step_dir(run.root, 2))
    assert found.done()
    await found.stop()
