"""The images of a row: where they stand in its messages, and their files. Everything that can be wrong names file and row."""

import base64
import io
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rljob_trainer.data.files import ABSENT, Place, Record, find, short
from rljob_trainer.failure import is_outage

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

Messages = tuple[Mapping[str, Any], ...]
MARK = "<image>"
"""In a text: an image stands here."""
MOST_BYTES, MOST_PIXELS = 64 * 2**20, 2**26
"""Of one file, and of what it decodes to: more is a mistake, or a file made to exhaust memory."""
UNREAD = {MARK: ("images", "image"), "<video>": ("videos", "video"), "<audio>": ("audios", "audio")}
"""What a text says where something stands that is in one of these columns."""
PARTS = ("image", "image_url")
"""Kinds of parts of a message's content that are images."""
_FIX = "write images as bytes, {bytes, path}, the path of a file or a data: URL with base64, or leave the row out"


def lifted(record: Record, key: str, place: Place) -> tuple[Record, tuple[Any, ...]]:
    """The record with MARK in place of images within its messages, and all images as they are given: those of column `key`, or else of the messages.

    Raises ConfigurationError when both have some.
    """
    value = find(key, record)
    given = [] if value is ABSENT or value is None else list(value) if isinstance(value, (list, tuple)) else [value]
    inside: list[Any] = []
    texts = {name: _texts(held, inside) for name, held in record.items() if _has_parts(held)}
    if given and inside:
        rule = f"has images in column {key!r} and in its messages"
        raise place.error(rule, f"write {MARK} where an image of the column stands, or leave the column empty")
    return {**record, **texts}, tuple(given or inside)


def with_parts(messages: Messages, count: int, place: Place) -> Messages:
    """With `count` images as parts of the content, as chat templates read them: where MARK says, or else in front of the user's first message.

    Raises ConfigurationError when there are more or fewer marks than images.
    """
    marks = sum(m["content"].count(MARK) for m in messages if m["role"] != "assistant")
    others = [i for i, m in enumerate(messages) if m["role"] != "assistant"]
    if not marks and count and others:
        first = next((i for i in others if messages[i]["role"] == "user"), others[0])
        content = MARK * count + messages[first]["content"]
        return with_parts(
            (*messages[:first], {**messages[first], "content": content}, *messages[first + 1 :]), count, place
        )
    if marks != count:
        rule = f"its messages say {MARK} {marks} times, and it has {count} images"
        raise place.error(
            rule, f"write one {MARK} for each image, or none to have all in front of the user's first message"
        )
    return tuple(m if m["role"] == "assistant" else {**m, "content": _parts(m["content"])} for m in messages)


def require_no_images(sources: Sequence[Any], place: Place) -> None:
    """Raises ConfigurationError: a text that goes through no template has no place for one."""
    if sources:
        rule = "has images, and a text that is taken as it stands and has no place for them"
        raise place.error(rule, "set spec.data.chatTemplate.texts: true, or write the row as messages")


def require_none_unread(
    texts: Iterable[str], key: str | None, names: Callable[[], Collection[str]], place: Place
) -> None:
    """Raises ConfigurationError for texts that show a place of what nobody reads. `key`: spec.data.imageKey; `names`: the row's columns."""
    said = {mark for text in texts for mark in UNREAD if mark in text and not (key and mark == MARK)}
    for mark in sorted(said):
        if held := [name for name in UNREAD[mark] if name in names()]:
            rule = f"says {mark} and has a column {held[0]!r}, which is not read: the model would see the word {mark}"
            fix = f"set spec.data.imageKey: {held[0]}" if mark == MARK else "images alone can be shown to a model"
            raise place.error(rule, f"{fix}; or remove the column, where {mark} is a mere word")


def images_in(messages: Messages) -> int:
    """Parts that are images."""
    contents = [m["content"] for m in messages if isinstance(m["content"], list)]
    return sum(part["type"] == "image" for content in contents for part in content)


def opened(source: Any, place: Place) -> "Picture":
    """The picture, of which no more than its size may have been read. Raises ConfigurationError; OSError when its volume is away."""
    from PIL import Image, UnidentifiedImageError  # only who has images pays

    data, said = _content(source, place)
    if len(data) > MOST_BYTES:
        raise place.error(f"its image {said} has {len(data)} bytes, more than {MOST_BYTES}", "make the image smaller")
    try:
        found = Image.open(io.BytesIO(data))
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise place.error(
            f"its image {said} cannot be read: {error}", "replace the file, or leave the row out"
        ) from error
    if found.width * found.height > MOST_PIXELS:
        rule = f"its image {said} has {found.width} x {found.height} pixels, more than {MOST_PIXELS}"
        raise place.error(rule, "make the image smaller")
    return found


def _has_parts(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(m, Mapping) and isinstance(m.get("content"), list) for m in value)


def _texts(messages: Sequence[Any], inside: list[Any]) -> list[Any]:
    """Messages whose content is texts; images are added to `inside`."""
    return [{**m, "content": _text(m["content"], inside)} if _is_listed(m) else m for m in messages]


def _is_listed(message: Any) -> bool:
    return isinstance(message, Mapping) and isinstance(message.get("content"), list)


def _text(parts: Sequence[Any], inside: list[Any]) -> Any:
    """One text; the parts themselves where one is neither a text nor an image, for whoever reads messages to refuse."""
    said = []
    for part in parts:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind in PARTS:
            value = part.get(kind)
            inside.append(value["url"] if isinstance(value, Mapping) and "url" in value else value)
            said.append(MARK)
        elif isinstance(part, Mapping) and isinstance(part.get("text"), str):
            said.append(part["text"])
        else:
            return list(parts)
    return "".join(said)


def _parts(content: str) -> Any:
    if MARK not in content:
        return content
    texts = content.split(MARK)
    pairs = [[{"type": "image"}, {"type": "text", "text": text}] for text in texts[1:]]
    parts = [{"type": "text", "text": texts[0]}, *(part for pair in pairs for part in pair)]
    return [part for part in parts if part["type"] == "image" or part["text"]]


def _content(source: Any, place: Place) -> tuple[bytes, str]:
    """Bytes, and what messages call the image."""
    if isinstance(source, Mapping):
        source = source.get("bytes") or source.get("path")
    if isinstance(source, bytes):
        return source, "in the row"
    if not isinstance(source, str) or source.startswith(("http://", "https://")):
        raise place.error(f"holds the image {short(source)}, which is none that can be read here", _FIX)
    return (_decoded(source, place), "in the row") if source.startswith("data:") else (_file(source, place), source)


def _decoded(url: str, place: Place) -> bytes:
    try:
        return base64.b64decode(url.partition(",")[2], validate=True)
    except ValueError as error:  # of base64, or because it is not even ASCII
        raise place.error(f"holds the image {short(url)}, which is no base64: {error}", _FIX) from error


def _file(name: str, place: Place) -> bytes:
    """Of a path, which counts from the directory of the data file."""
    path = Path(place.path).parent / name
    try:
        with path.open("rb") as stream:
            return stream.read(MOST_BYTES + 1)
    except OSError as error:
        if is_outage(error):
            raise
        fix = "correct the path, mount the volume that holds it in spec.volumes, or leave the row out"
        raise place.error(f"its image {path} cannot be read: {error.strerror or error}", fix) from error
