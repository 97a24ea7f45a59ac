"""The images of a row: where they stand in its messages, their files, and the arrays that the model's own image processor makes of them.

Everything that can be wrong names file and row. Without torch, which the processor's implementation on PIL does not need.
"""

import base64
import io
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rljob_api.spec import RLJobSpec
from rljob_trainer.data.conversations import Messages
from rljob_trainer.data.files import ABSENT, Place, Record, find, short
from rljob_trainer.failure import ConfigurationError, is_outage
from rljob_trainer.wire.images import Image, Placed
from rljob_trainer.wire.trajectory import Bools, Ints

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

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
        held = [name for name in UNREAD[mark] if name in names()]
        if held:
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
        picture = Image.open(io.BytesIO(data))
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise place.error(
            f"its image {said} cannot be read: {error}", "replace the file, or leave the row out"
        ) from error
    if picture.width * picture.height > MOST_PIXELS:
        rule = f"its image {said} has {picture.width} x {picture.height} pixels, more than {MOST_PIXELS}"
        raise place.error(rule, "make the image smaller")
    return picture


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


CUT = {"patch_size": "patch_size", "temporal_patch_size": "temporal_patch_size", "spatial_merge_size": "merge_size"}
"""Names in a config.json's section of the tower, and in preprocessor_config.json."""


class ImageReader:
    """For a job whose rows have images, in the column `key`."""

    def __init__(self, model: str, key: str):
        """`model`: spec.model.path. Raises ConfigurationError when that holds no image processor of the family, or one that cuts images otherwise
        than the model's tower reads them."""
        self.key, self._processor = key, _processor(model)
        config = json.loads((Path(model) / "config.json").read_text())
        _require_same_cut(model, self._processor, config.get("vision_config") or {})
        self.token: int = config["image_token_id"]

    def tokens(self, source: Any, place: Place) -> int:
        """That an image takes, from its size. Raises as `opened`."""
        picture, processor = opened(source, place), self._processor
        try:
            patches = processor.get_number_of_image_patches(picture.height, picture.width, {})
        except ValueError as error:
            raise place.error(
                f"its image cannot be cut into patches: {error}", "replace it, or leave the row out"
            ) from error
        return int(patches) // processor.merge_size**2

    def read(self, source: Any, place: Place) -> Image:
        """Raises as `opened`, also for a file that ends too early."""
        picture = opened(source, place)
        try:
            processed = self._processor(images=[picture.convert("RGB")], return_tensors="np")
        except (OSError, ValueError, SyntaxError) as error:
            raise place.error(f"an image of it cannot be read: {error}", "replace it, or leave the row out") from error
        _, rows, columns = processed["image_grid_thw"][0].tolist()
        return Image(processed["pixel_values"].astype(np.float32), (rows, columns), self._processor.merge_size)

    def png(self, image: Image, most: int) -> bytes:
        """The picture as the model reads it, in a PNG file; scaled down where a side has more than `most` pixels. The inverse of `read`."""
        from PIL import Image as Pictures

        p, merge, (rows, columns) = self._processor, image.merge, image.token_grid
        size = p.patch_size
        # a patch is there once for each frame of a video; those of a square of merge x merge follow each other
        patches = image.pixels.reshape(rows, columns, merge, merge, 3, p.temporal_patch_size, size, size)[
            :, :, :, :, :, 0
        ]
        pixels = patches.transpose(0, 2, 5, 1, 3, 6, 4).reshape(rows * merge * size, columns * merge * size, 3)
        pixels = (pixels * p.image_std + p.image_mean) / p.rescale_factor
        picture = Pictures.fromarray(pixels.round().clip(0, 255).astype(np.uint8))
        picture.thumbnail((most, most))
        file = io.BytesIO()
        picture.save(file, "PNG")
        return file.getvalue()

    def expanded(self, tokens: Ints, learnt: Bools, counts: Sequence[int], place: Place) -> tuple[Ints, Bools]:
        """With as many image tokens for each image as it takes, in place of the one of the template; none of them is learnt.

        Raises ConfigurationError when the text has more or fewer of them than there are images.
        """
        is_image = tokens == self.token
        if is_image.sum() != len(counts):
            rule = f"its text has {is_image.sum()} image tokens by the chat template, and {len(counts)} images"
            raise place.error(rule, "use the model's own chat template, and no image token in a text")
        repeats = np.ones(len(tokens), np.int64)
        repeats[is_image] = counts
        return np.repeat(tokens, repeats), np.repeat(learnt & ~is_image, repeats)

    def prompt(self, tokens: Sequence[int], sources: Sequence[Any], place: Place) -> list[int]:
        """A prompt's tokens, expanded for its images, of which only the sizes are read."""
        counts, given = [self.tokens(source, place) for source in sources], np.array(tokens, np.int32)
        return self.expanded(given, np.zeros(len(given), np.bool_), counts, place)[0].tolist()

    def placed(self, tokens: Ints, images: Sequence[Image]) -> tuple[Placed, ...]:
        """The images in tokens that were expanded for them."""
        placed, at = [], 0
        for image in images:
            start = at + int(np.argmax(tokens[at:] == self.token))
            placed.append((start, image))
            at = start + image.tokens
        return tuple(placed)


def image_reader(spec: RLJobSpec) -> ImageReader | None:
    """None: the rows are texts. Raises as ImageReader."""
    return ImageReader(spec.model.path, spec.data.image_key) if spec.data.image_key else None


def _processor(path: str) -> Any:
    # seconds to import: only who has images pays
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    try:
        return Qwen2VLImageProcessorPil.from_pretrained(path, local_files_only=True)
    except (OSError, ValueError) as error:
        fix = "put preprocessor_config.json next to config.json"
        rule = f"no image processor can be loaded from it: {error}"
        raise ConfigurationError("spec.model.path", path, rule, fix) from error


def _require_same_cut(path: str, processor: Any, vision: Mapping[str, Any]) -> None:
    """Raise ConfigurationError where preprocessor_config.json and config.json cut images differently. With smaller squares of patches in the tower
    only the first part of what it sees would be read, without a word."""
    for key, name in CUT.items():
        said, own = vision.get(key), getattr(processor, name)
        if said is not None and said != own:
            rule = f"its preprocessor_config.json has {name} = {own}, and its config.json vision_config.{key} = {said}"
            fix = "restore both files from where the model was published"
            raise ConfigurationError("spec.model.path", path, rule, fix)
