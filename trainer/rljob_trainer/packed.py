"""Long rows of numbers in JSON: as they lie in memory, in base64. As decimals they are many times dearer to write and to read."""

import base64
import struct
from collections.abc import Sequence
from typing import Any, Literal

Kind = Literal["i", "f", "d"]
"""int32, float32, float64; little-endian."""


def pack(kind: Kind, numbers: Sequence[float]) -> str:
    """Raises struct.error for what the kind cannot hold."""
    return base64.b64encode(struct.pack(f"<{len(numbers)}{kind}", *numbers)).decode()


def unpack(kind: Kind, text: str) -> tuple[Any, ...]:
    """What `pack` was given, bit by bit."""
    row = base64.b64decode(text)
    return struct.unpack(f"<{len(row) // struct.calcsize(kind)}{kind}", row)
