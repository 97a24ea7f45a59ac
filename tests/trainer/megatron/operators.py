"""What torch computes, by the names of operators."""

from collections import Counter
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

Count = Counter[str]


class Operators(TorchDispatchMode):
    """Counts what is computed inside."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Count = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.found[str(func)] += 1
        return func(*args, **(kwargs or {}))
