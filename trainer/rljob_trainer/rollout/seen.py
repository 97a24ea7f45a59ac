"""Images in a request to generate: what the trainer's vision tower reads is what the server's does, without a second image processor.

In JSON: `place`, `grid` and `merge` as images.Placed has them, and `pixels` as base64 of little-endian float32.
"""

import base64
from collections.abc import Sequence
from typing import Any

from rljob_trainer.images import Placed


def encode_images(images: Sequence[Placed]) -> list[dict[str, Any]]:
    """What a request says of them."""
    return [
        {
            "place": place,
            "grid": list(image.grid),
            "merge": image.merge,
            "pixels": base64.b64encode(image.pixels.astype("<f4").tobytes()).decode(),
        }
        for place, image in images
    ]
