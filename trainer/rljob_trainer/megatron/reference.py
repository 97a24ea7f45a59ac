"""The frozen policy of the KL penalty: a copy in host memory that takes the policy's place, or a second model on the device."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch


class HostCopy:
    """Values for the parameters of `modules`, in host memory: those of `source`, which has the same shapes, as they are now."""

    def __init__(self, modules: Sequence[torch.nn.Module], source: Sequence[torch.nn.Module] | None = None) -> None:
        pin = torch.cuda.is_available()
        theirs = [p for module in source or modules for p in module.parameters()]
        ours = [p for module in modules for p in module.parameters()]
        copies = [torch.empty_like(p, device="cpu", pin_memory=pin).copy_(p.detach()) for p in theirs]
        self._pairs = list(zip(ours, copies, strict=True))

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Inside, the modules have the copied values; afterwards their own again, bit for bit."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    @torch.no_grad()
    def _exchange(self) -> None:
        for parameter, copy in self._pairs:
            own = parameter.detach().clone()
            parameter.copy_(copy)
            copy.copy_(own)
