"""The starting policy, kept in host memory and swapped into the actor's buffers when it is needed."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


class HostCopy:
    """A copy of a module's parameters as they are now."""

    def __init__(self, module: torch.nn.Module) -> None:
        pin = torch.cuda.is_available()
        self._pairs = [
            (p, torch.empty_like(p, device="cpu", pin_memory=pin).copy_(p.detach())) for p in module.parameters()
        ]

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Inside, the module has the copied values; afterwards its own again, bit for bit."""
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
