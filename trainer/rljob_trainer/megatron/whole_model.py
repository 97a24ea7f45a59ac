"""The one model of a service that trains all parameters. It begins with those of the base model."""

from collections.abc import Collection, Sequence
from typing import Any

from megatron.core.distributed import DistributedDataParallel

from rljob_trainer.megatron.compat.adam import allocate
from rljob_trainer.megatron.model import PolicyModel
from rljob_trainer.megatron.optimizer import begin_anew
from rljob_trainer.wire.service import CreateModel, RefusedWork


class WholeModel:
    """In place of ClientSlots (service.py). Every method is called on all ranks in the same order; `create` communicates."""

    def __init__(self, model: PolicyModel, chunks: Sequence[DistributedDataParallel], optimizer: Any) -> None:
        self._model, self._chunks, self._optimizer = model, chunks, optimizer
        self._created: CreateModel | None = None
        self._untouched = True
        """The parameters are those of the base model."""
        for part in optimizer.chained_optimizers:
            allocate(part)

    def create(self, work: CreateModel) -> None:
        """Raises RefusedWork."""
        self._require(work)
        if not self._untouched:
            self._model.reload()
        self._optimizer.reload_model_params()
        self.restart()
        self._created, self._untouched = work, False

    def use(self, model: str) -> CreateModel:
        """How the model was created. Raises RefusedWork when there is none of this name."""
        if self._created is None or self._created.model != model:
            raise RefusedWork(f"there is no model {model}")
        return self._created

    def keep(self, models: Collection[str]) -> None:
        """Forget the model, unless it is among these."""
        if self._created and self._created.model not in models:
            self._created = None

    def restart(self) -> None:
        """Give the model an optimizer that has made no step, and no gradients."""
        begin_anew(self._chunks, self._optimizer)

    def _require(self, work: CreateModel) -> None:
        if self._created:
            raise RefusedWork(
                "all parameters are trained of one model at a time: end the session of the other one first"
            )
        if work.rank:
            raise RefusedWork(f"rank {work.rank}: there are no adapters, since spec.service.maxRank is 0")
