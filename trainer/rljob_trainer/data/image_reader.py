"""Pictures to images, by the model's own image processor. Without torch, which its implementation on PIL does not need."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rljob_api.spec import RLJobSpec
from rljob_trainer.data.files import Place
from rljob_trainer.data.pictures import opened
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.wire.images import Image, Placed
from rljob_trainer.wire.trajectory import Bools, Ints


class ImageReader:
    """Of spec.model.path, for a job whose rows have images."""

    def __init__(self, spec: RLJobSpec):
        """Raises ConfigurationError when the directory holds no image processor of the family."""
        path = spec.model.path
        assert spec.data.image_key
        self.key, self._processor = spec.data.image_key, _processor(path)
        self.token: int = json.loads((Path(path) / "config.json").read_text())["image_token_id"]

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
            found = self._processor(images=[picture.convert("RGB")], return_tensors="np")
        except (OSError, ValueError, SyntaxError) as error:
            raise place.error(f"an image of it cannot be read: {error}", "replace it, or leave the row out") from error
        _, rows, columns = found["image_grid_thw"][0].tolist()
        return Image(found["pixel_values"].astype(np.float32), (rows, columns), self._processor.merge_size)

    def expanded(self, tokens: Ints, learnt: Bools, counts: Sequence[int], place: Place) -> tuple[Ints, Bools]:
        """With as many image tokens for each image as it takes, in place of the one of the template; none of them is learnt.

        Raises ConfigurationError when the text has more or fewer of them than there are images.
        """
        found = tokens == self.token
        if found.sum() != len(counts):
            rule = f"its text has {found.sum()} image tokens by the chat template, and {len(counts)} images"
            raise place.error(rule, "use the model's own chat template, and no image token in a text")
        repeats = np.ones(len(tokens), np.int64)
        repeats[found] = counts
        return np.repeat(tokens, repeats), np.repeat(learnt & ~found, repeats)

    def prompt(self, tokens: Sequence[int], sources: Sequence[Any], place: Place) -> list[int]:
        """A prompt's tokens, expanded for its images, of which only the sizes are read."""
        counts, given = [self.tokens(source, place) for source in sources], np.array(tokens, np.int32)
        return self.expanded(given, np.zeros(len(given), np.bool_), counts, place)[0].tolist()

    def placed(self, tokens: Ints, images: Sequence[Image]) -> tuple[Placed, ...]:
        """The images in tokens that were expanded for them."""
        found, at = [], 0
        for image in images:
            start = at + int(np.argmax(tokens[at:] == self.token))
            found.append((start, image))
            at = start + image.tokens
        return tuple(found)


def image_reader(spec: RLJobSpec) -> ImageReader | None:
    """None: the rows are texts. Raises as ImageReader."""
    return ImageReader(spec) if spec.data.image_key else None


def _processor(path: str) -> Any:
    # seconds to import: only who has images pays
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    try:
        return Qwen2VLImageProcessorPil.from_pretrained(path, local_files_only=True)
    except (OSError, ValueError) as error:
        fix = "put preprocessor_config.json next to config.json"
        rule = f"no image processor can be loaded from it: {error}"
        raise ConfigurationError("spec.model.path", path, rule, fix) from error
