"""The policy as Hugging Face directories of the run, on every rank: some while it trains, and one at its end. Every method is collective."""

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

from rljob_api import names
from rljob_api.spec import RLJobSpec
from rljob_trainer.checkpoint.exports import prune
from rljob_trainer.checkpoint.files import make_directory, replace, sweep, sync
from rljob_trainer.checkpoint.store import Store
from rljob_trainer.driver.client import DriverClient
from rljob_trainer.megatron.engine import Engine
from rljob_trainer.megatron.huggingface import write_adapters, write_hugging_face


class Exports:
    """Of one attempt. `driver`, `store`: on rank 0 only."""

    def __init__(self, spec: RLJobSpec, engine: Engine, driver: DriverClient | None, store: Store | None):
        self._spec, self._engine, self._driver, self._store = spec, engine, driver, store
        self._root = Path(spec.checkpoint.path)

    def due(self, step: int) -> bool:
        """Whether the policy of `step` is exported while the job continues."""
        every = self._spec.checkpoint.export_every_steps
        return every > 0 and step % every == 0 and step < self._spec.train.total_steps

    def periodic(self, step: int) -> None:
        """To `exports/step_N`; then older ones go."""
        if self._store:
            make_directory(names.exports_dir(self._root))
            sweep(names.exports_dir(self._root))
        self._write(names.export_dir(self._root, step), self._model)
        if self._store:
            prune(self._root, self._spec.checkpoint.export_every_steps, self._spec.checkpoint.keep_exports)

    def final(self, step: int) -> str:
        """Next to the checkpoint of `step`, with its adapters, where it has some. The path of the model, empty when the spec wants none."""
        if not self._spec.checkpoint.export_hugging_face:
            return ""
        target = names.huggingface_dir(self._root, step)
        if lora := self._spec.model.lora:
            source = Path(self._spec.model.path)
            self._write(names.adapter_dir(self._root, step), partial(write_adapters, self._engine, lora, source))
        self._write(target, self._model)
        return str(target)

    def _model(self, target: Path) -> None:
        write_hugging_face(self._engine, Path(self._spec.model.path), target)

    def _write(self, target: Path, write: Callable[[Path], None]) -> None:
        """A directory that is complete and on the disk when it has its name."""
        scratch = target.with_name(target.name + ".tmp")
        if self._store:
            shutil.rmtree(scratch, ignore_errors=True)
        write(scratch)
        if self._store and self._driver:
            self._store.check()
            if template := self._spec.data.chat_template.path:
                shutil.copy(template, scratch / "chat_template.jinja")  # before the tokenizer's own, for who loads it
            sync(scratch, self._engine.heartbeat)
            replace(scratch, target)
            self._driver.exported(target)
