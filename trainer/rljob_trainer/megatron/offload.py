"""Offloads parameters, gradients and optimizer state to host memory while they are not in use, so that networks can share a device.

Storages are resized in place, so that all views of them (parameters in DDP's buffers, the optimizer's shards) remain valid. megatron's own
`MegatronOptimizer.offload_to_cpu` (core/optimizer/optimizer.py:555) replaces the optimizer's tensors instead; float32 shards, which are views of the
model's parameters, would then never update the model again.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Literal

import torch

from rljob_api.spec.roles import Offload
from rljob_trainer.checkpoint.staging import HostMemory

PartName = Literal["parameters", "gradients", "optimizer"]
Tensors = Callable[[], Iterable[torch.Tensor]]


class Offloader:
    """Offloads one network. A part that `offload` names is on the device only inside `using`."""

    def __init__(
        self, offload: Offload, modules: Sequence[torch.nn.Module], ddp: Sequence[Any] = (), optimizer: Any = None
    ):
        """`ddp`, `optimizer`: of a trained network."""
        parameters = lambda: (p for m in modules for p in m.parameters())  # noqa: E731
        parts: dict[PartName, Tensors] = {
            "parameters": parameters,
            "gradients": lambda: (b.grad_data for d in ddp for b in d.buffers + d.expert_parallel_buffers),
            "optimizer": lambda: states(optimizer, {p.untyped_storage().data_ptr() for p in parameters()}),
        }
        self._parts = {
            name: OffloadedPart(tensors, keep=name != "gradients")
            for name, tensors in parts.items()
            if getattr(offload, name)
        }

    @contextmanager
    def using(self, *parts: PartName) -> Iterator[None]:
        """A context in which these parts are on the device. May be nested. Gradients come back undefined, and must be zeroed first."""
        with ExitStack() as stack:
            for part in parts:
                if part in self._parts:
                    stack.enter_context(self._parts[part].fetched())
            yield


class OffloadedPart:
    """The storages of some tensors, on the device or in host memory."""

    def __init__(self, tensors: Tensors, keep: bool = True) -> None:
        """Offloads them at once. `keep`: preserve their content."""
        self._tensors, self._keep, self._users = tensors, keep, 0
        self._away: list[tuple[torch.UntypedStorage, int]] = []
        self._host = HostMemory()
        self._offload()

    @contextmanager
    def fetched(self) -> Iterator[None]:
        self._users += 1
        if self._users == 1:
            self._fetch()
        try:
            yield
        finally:
            self._users -= 1
            if self._users == 0:
                self._offload()

    def _offload(self) -> None:
        storages = {s.data_ptr(): s for s in (t.untyped_storage() for t in self._tensors()) if s.nbytes()}
        self._away = [(s, s.nbytes()) for s in storages.values()]
        at = 0
        for storage, _ in self._away:
            if self._keep:
                at = self._host.write(at, _bytes(storage))
            storage.resize_(0)

    def _fetch(self) -> None:
        at = 0
        for storage, size in self._away:
            storage.resize_(size)
            if self._keep:
                at = self._host.read(at, _bytes(storage))


def _bytes(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def states(optimizer: Any, parameters: set[int]) -> Iterator[torch.Tensor]:
    """The optimizer's moments and float32 master copies, except tensors in the storages `parameters`: shards of float32 parameters are views of
    them."""
    for inner in torch_optimizers(optimizer):
        tensors = [t for state in inner.state.values() for t in state.values() if isinstance(t, torch.Tensor)]
        tensors += [p for group in inner.param_groups for p in group["params"]]
        yield from (t for t in tensors if t.dim() and t.untyped_storage().data_ptr() not in parameters)


def torch_optimizers(optimizer: Any) -> Iterator[torch.optim.Optimizer]:
    """Those in megatron's, one each for dense and for expert parameters; none for a rank whose share is empty."""
    yield from (o.optimizer for o in getattr(optimizer, "chained_optimizers", [optimizer]) if o.optimizer)
