"""How many fields a body of protobuf has, before anything is made of it: two bytes of an empty field become some fifty in memory, and compressed
they are next to nothing, so that a body of some kilobytes could take all that the gateway has."""

from typing import Any

from rljob_trainer.gateway.wire.messages import MESSAGES

MOST_FIELDS = 2**18
"""Of a call, with those of its data and their tensors: several times as many as the SDK's largest call has (1024 data)."""
_LONGEST_VARINT = 10
_VARINT, _EIGHT, _DELIMITED, _FOUR = 0, 1, 2, 5
"""Types of fields."""

_Lists = dict[int, "_Lists | None"]
"""Fields of a message that are lists or have some within, by their numbers: what is within, or None: numbers, each of which counts. Only these can be
more in memory than in the body."""


def count_fields(body: bytes, message: str, most: int = MOST_FIELDS) -> int:
    """Of a message of this name, with those of its lists; few more than `most` are looked at. Raises ValueError for what is no message."""
    try:
        return _count(body, 0, len(body), _LISTS[message], most)
    except IndexError:
        raise ValueError("the body ends within a field") from None


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


def _count(body: bytes, at: int, end: int, lists: _Lists, most: int) -> int:
    """Every call has some thousands of fields: most tags and sizes are one byte, which is read here."""
    count = 0
    while at < end and count <= most:
        tag, at = (body[at], at + 1) if body[at] < 0x80 else varint(body, at)
        count += 1
        if tag & 7 != _DELIMITED:
            at = _behind(body, at, tag & 7)
            continue
        size, at = (body[at], at + 1) if body[at] < 0x80 else varint(body, at)
        if tag >> 3 in lists:
            within = lists[tag >> 3]
            count += size if within is None else _count(body, at, min(at + size, end), within, most - count)
        at += size
    return count


def _behind(body: bytes, at: int, kind: int) -> int:
    """Where a field of a fixed size, or a number, ends. Raises IndexError, ValueError."""
    if kind == _VARINT:
        return varint(body, at)[1]
    if kind not in (_EIGHT, _FOUR):
        raise ValueError(f"the body has a field of type {kind}, which is not read")
    return at + (8 if kind == _EIGHT else 4)


def _lists(descriptor: Any) -> _Lists:
    found: _Lists = {}
    for field in descriptor.fields:
        within = _lists(field.message_type) if field.message_type else {}
        if within:
            found[field.number] = within
        elif field.is_packed:
            found[field.number] = None
    return found


_LISTS = {name: _lists(kind.DESCRIPTOR) for name, kind in MESSAGES.items()}
