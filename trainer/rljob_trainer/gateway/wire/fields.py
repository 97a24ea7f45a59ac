"""How many fields a body of protobuf has, before anything is made of it: two bytes of an empty field become some fifty in memory, and compressed
they are next to nothing, so that a body of some kilobytes could take all that the gateway has."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from rljob_trainer.gateway.wire.messages import MESSAGES

MOST_FIELDS = 2**18
"""Of a call, with those of its data and their tensors: several times as many as the SDK's largest call has (1024 data)."""
_LONGEST_VARINT = 10
_VARINT, _EIGHT, _DELIMITED, _FOUR = 0, 1, 2, 5
"""Types of fields."""


class _Parts(NamedTuple):
    """What is counted within a message."""

    messages: Mapping[int, "_Parts"]
    """Fields that are messages, by their numbers."""
    packed: frozenset[int]
    """Fields with a list of numbers, each of which counts."""


def count_fields(body: bytes, message: str, most: int = MOST_FIELDS) -> int:
    """Of a message of this name; no more than `most` + 1 are looked at. Raises ValueError for what is no message."""
    count = 0
    try:
        for more in _counted(body, 0, len(body), _PARTS[message]):
            count += more
            if count > most:
                break
    except IndexError:
        raise ValueError("the body ends within a field") from None
    return count


def varint(body: bytes, at: int) -> tuple[int, int]:
    """A number, and where it ends. Raises IndexError, ValueError."""
    value = body[at]
    if value < 0x80:
        return value, at + 1
    value, end = value & 0x7F, at + 1
    while body[end] & 0x80:
        value |= (body[end] & 0x7F) << 7 * (end - at)
        end += 1
        if end - at >= _LONGEST_VARINT:
            raise ValueError("the body has a number of more than 64 bits")
    return value | body[end] << 7 * (end - at), end + 1


def _counted(body: bytes, at: int, end: int, parts: _Parts) -> Iterator[int]:
    while at < end:
        tag, at = varint(body, at)
        number, kind = tag >> 3, tag & 7
        if kind != _DELIMITED:
            at = _behind(body, at, kind)
            yield 1
            continue
        size, at = varint(body, at)
        yield size if number in parts.packed else 1
        if number in parts.messages:
            yield from _counted(body, at, min(at + size, end), parts.messages[number])
        at += size


def _behind(body: bytes, at: int, kind: int) -> int:
    """Where a field of a fixed size, or a number, ends. Raises IndexError, ValueError."""
    if kind == _VARINT:
        return varint(body, at)[1]
    if kind not in (_EIGHT, _FOUR):
        raise ValueError(f"the body has a field of type {kind}, which is not read")
    return at + (8 if kind == _EIGHT else 4)


def _parts(descriptor: Any) -> _Parts:
    messages = {field.number: _parts(field.message_type) for field in descriptor.fields if field.message_type}
    return _Parts(messages, frozenset(field.number for field in descriptor.fields if field.is_packed))


_PARTS = {name: _parts(kind.DESCRIPTOR) for name, kind in MESSAGES.items()}
