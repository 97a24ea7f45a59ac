"""Exports the policy as Hugging Face directories: periodically while it trains, and at the end of the job. Every method is collective."""

import shutil
from collections.abc import Callable
from pathlib import Path

from rljob_api import names
from rljob_api.spec import RLJobSpec
from rljob_trainer.checkpoint.exports import prune
from rljob_trainer.checkpoint.files import make_directory, replace, sweep, sync
from rljob_trainer.checkpoint.store import Store
from rljob_trainer.data.tokenizer import add_chat_files
from rljob_trainer.megatron.engine import Engine
from rljob_trainer.megatron.huggingface import write_adapters, write_hugging_face
from rljob_trainer.rank.driver_client import DriverClient


class Exports:
    """The exports of one attempt. `driver`, `store`: on rank 0 only."""

    def __init__(self, spec: RLJobSpec, engine: Engine, driver: DriverClient | None, store: Store | None):
        self._spec, self._engine, self._driver, self._store = spec, engine, driver, store
        self._root = Path(spec.checkpoint.path)

    def due(self, step: int) -> bool:
        """Whether the policy of `step` is exported while the job continues."""
        every = self._spec.checkpoint.export_every_steps
        return every > 0 and step % every == 0 and step < self._spec.train.total_steps

    def periodic(self, step: int) -> None:
        """Export to `exports/step_N`, then delete superseded exports."""
        if self._store:
            make_directory(names.exports_dir(self._root))
            sweep(names.exports_dir(self._root))
        self._write(names.export_dir(self._root, step), self._model)
        if self._store:
            prune(self._root, self._spec.checkpoint.export_every_steps, self._spec.checkpoint.keep_exports)

    def final(self, step: int) -> str:
        """Export the model, and its adapters if it has some, next to the checkpoint of `step`. Returns the path of the model; empty if
        checkpoint.exportHuggingFace is false."""
        if not self._spec.checkpoint.export_hugging_face:
            return ""
        target = names.huggingface_dir(self._root, step)
        if lora := self._spec.model.lora:
            source = Path(self._spec.model.path)
            write = lambda scratch: write_adapters(self._engine.export_adapters(), lora, source, scratch)  # noqa: E731
            self._write(names.adapter_dir(self._root, step), write)
        self._write(target, self._model)
        return str(target)

    def _model(self, target: Path) -> None:
        write_hugging_face(self._engine, Path(self._spec.model.path), target)

    def _write(self, target: Path, write: Callable[[Path], None]) -> None:
        """Write a directory under a temporary name, and rename it once it is complete and durable."""
        scratch = target.with_name(target.name + ".tmp")
        if self._store:
            shutil.rmtree(scratch, ignore_errors=True)
        write(scratch)
        if self._store and self._driver:
            self._store.check()
            add_chat_files(self._spec, scratch)
            sync(scratch, self._engine.heartbeat)
            replace(scratch, target)
            self._driver.exported(target)
