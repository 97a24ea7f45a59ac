"""Memory of this rank's device by phase of a step: planned before a model is loaded, refused when it cannot fit, measured for comparison; and made
free while parameters, gradients and optimizer state are not in use, so that networks can share a device.

The device is the rank's GPU or, on CPU, the machine.

What is offloaded lies in host memory. Storages are resized in place, so that all views of them (parameters in DDP's buffers, the optimizer's
shards) remain valid. megatron's own `MegatronOptimizer.offload_to_cpu` (core/optimizer/optimizer.py:555) replaces the optimizer's tensors instead;
float32 shards, which are views of the model's parameters, would then never update the model again.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from rljob_api import names
from rljob_api.sizing.layout import Layout
from rljob_api.sizing.memory import PhaseMemory, PhaseName, phases
from rljob_api.sizing.replica import server_defaults
from rljob_api.sizing.shape import Shape
from rljob_api.spec import RLJobSpec
from rljob_api.spec.roles import Offload
from rljob_trainer.checkpoint.staging import PinnedMemory
from rljob_trainer.failure import ConfigurationError

PartName = Literal["parameters", "gradients", "optimizer"]
Tensors = Callable[[], Iterable[torch.Tensor]]
PROCESS = Path("/proc/self")
RESET_PEAK = "5"
"""For /proc/PID/clear_refs (Linux, Documentation/filesystems/proc.rst)."""


class Offloader:
    """Offloads one network. A part that `offload` names is on the device only inside `using`."""

    def __init__(
        self, offload: Offload, modules: Sequence[torch.nn.Module], ddp: Sequence[Any] = (), optimizer: Any = None
    ):
        """`ddp`, `optimizer`: of a trained network."""

        def parameters() -> Iterator[torch.Tensor]:
            return (p for m in modules for p in m.parameters())

        def gradients() -> Iterator[torch.Tensor]:
            return (b.grad_data for d in ddp for b in d.buffers + d.expert_parallel_buffers)

        def optimizer_states() -> Iterator[torch.Tensor]:
            return states(optimizer, {p.untyped_storage().data_ptr() for p in parameters()})

        parts: dict[PartName, Tensors] = {
            "parameters": parameters,
            "gradients": gradients,
            "optimizer": optimizer_states,
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
        self._host = PinnedMemory()
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


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The memory plan of a job on a device of `device` bytes. `phases` is empty when the sizes of the model are unknown."""

    phases: list[PhaseMemory]
    device: float

    @staticmethod
    def of(spec: RLJobSpec, device: float) -> "MemoryPlan":
        """Raises ConfigurationError when what a phase certainly needs, without estimates, does not fit."""
        shape = Shape.of(json.loads((Path(spec.model.path) / "config.json").read_text()))
        planned = phases(spec, shape, device) if shape else []
        most = max(planned, key=lambda p: p.certain, default=None)
        if most and most.certain > device:
            raise _too_much(spec, most, device)
        return MemoryPlan(planned, device)

    def table(self, measured: Mapping[PhaseName, float]) -> str:
        """A table of GiB by phase: planned, and as measured so far."""
        rows: list[tuple[str, ...]] = [("phase", "state", "estimate", "server", "planned", "measured")]
        for p in self.phases:
            sizes = (p.state, p.estimate, p.server, p.total, measured.get(p.name))
            rows.append((p.name, *("-" if size is None else _gib(size) for size in sizes)))
        over = [p.name for p in self.phases if p.total > self.device]
        note = f"; {', '.join(over)} may not fit, by the estimate" if over else ""
        lines = [f"{row[0]:<10}" + "".join(f"{cell:>10}" for cell in row[1:]) for row in rows]
        return "\n".join([f"memory by phase on a device of {_gib(self.device)} GiB{note}", *lines])


class Meter:
    """Measures the peak use of the device in each phase, in bytes.

    On a GPU: the peak of this process's allocations, plus what others use when the phase ends. On CPU: the process's largest resident set.
    """

    def __init__(self) -> None:
        self._phase: PhaseName | None = None
        self.peaks: dict[PhaseName, float] = {}

    def enter(self, phase: PhaseName) -> None:
        """Start a phase, which ends the previous one."""
        if self._phase:
            self.peaks[self._phase] = max(self.peaks.get(self._phase, 0.0), _peak())
        self._phase = phase
        _forget_peak()


def device_bytes() -> int:
    if torch.cuda.is_available():
        return torch.cuda.mem_get_info()[1]
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _peak() -> float:
    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        others = total - free - torch.cuda.memory_reserved()
        return float(others + torch.cuda.max_memory_allocated())
    line = next(line for line in (PROCESS / "status").read_text().splitlines() if line.startswith("VmHWM"))
    return 1024.0 * int(line.split()[1])


def _forget_peak() -> None:
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    else:
        with suppress(OSError):  # not permitted everywhere: the peak is then that of the process so far
            (PROCESS / "clear_refs").write_text(RESET_PEAK)


def _too_much(spec: RLJobSpec, phase: PhaseMemory, device: float) -> ConfigurationError:
    parts = f"{_gib(phase.state)} GiB of models and optimizers"
    fix = "use more ranks (spec.trainer.nodes, parallelism.tensor or pipeline), or set spec.trainer.offload"
    if not phase.server:
        rule = f"in `{phase.name}` a GPU has to hold {parts}, and has {_gib(device)}"
        return ConfigurationError("spec.trainer.parallelism", str(Layout.of(spec, names.ROLE_TRAINER)), rule, fix)
    given = server_defaults(spec) | spec.rollout.vllm_args
    key = next(key for key in ("kv-cache-memory-bytes", "gpu-memory-utilization") if given.get(key))
    servers = spec.rollout.servers_per_gpu
    whose = f"{servers} servers" if servers > 1 else "the server"
    rule = f"in `{phase.name}` a GPU has to hold {parts} and {_gib(phase.server)} of {whose}, and has {_gib(device)}"
    return ConfigurationError(f"spec.rollout.vllmArgs.{key}", given[key], rule, f"lower it, or {fix}")


def _gib(size: float) -> str:
    return f"{size / 2**30:.1f}"
