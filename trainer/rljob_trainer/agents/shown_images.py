"""The images of one trajectory: those of its row, and those that its agent shows in messages. Where one stands is known by the tokens before it."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np

from rljob_trainer.agents.api import Message, PolicyError
from rljob_trainer.agents.messages import sources_of
from rljob_trainer.data.files import Place
from rljob_trainer.data.pictures import ImageReader
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.wire.images import Image, Placed
from rljob_trainer.wire.trajectory import Ints, Segment

EMBEDDED = "data:"
"""What an address begins with that holds the image itself. Any other would have the driver read a file or ask a server for the agent."""


@dataclass
class _Shown:
    """An image, and the tokens that end with it."""

    until: Ints
    image: Image
    is_asked: bool = False
    """The policy has continued it: another image of these tokens could not be distinguished from it."""

    @property
    def start(self) -> int:
        return len(self.until) - self.image.tokens

    def is_in(self, tokens: Ints) -> bool:
        """They begin as those that end with it."""
        return len(self.until) <= len(tokens) and np.array_equal(tokens[: len(self.until)], self.until)


class ShownImages:
    """Without a reader: of a job whose policy reads texts only."""

    def __init__(self, reader: ImageReader | None = None, prompt: Sequence[int] = (), placed: Sequence[Placed] = ()):
        """`placed`: images of the row, in the tokens of its prompt."""
        self._reader = reader
        self._given = [(np.array(prompt[: start + image.tokens], np.int32), image) for start, image in placed]
        self._read: dict[str, Image] = {}
        self._shown: list[_Shown] = []
        self.forget()

    def forget(self) -> None:
        """The trajectory begins anew: only the row's images are known."""
        self._shown = [_Shown(until, image) for until, image in self._given]

    async def read(self, messages: Sequence[Message]) -> None:
        """Images of the messages that have not been read yet. Raises PolicyError."""
        for source in sources_of(messages):
            if source not in self._read:
                self._read[source] = await asyncio.to_thread(self._image, source)

    def _image(self, source: str) -> Image:
        if self._reader is None:
            raise PolicyError(
                "a part of a message is an image, and the policy reads texts only: spec.data.imageKey is unset"
            )
        if not source.startswith(EMBEDDED):
            raise PolicyError(f"an image of a message is {source[:100]!r}, and only data: URLs with base64 are read")
        try:
            return self._reader.read(source, Place("messages", "an image"))
        except ConfigurationError as error:
            raise PolicyError(f"an image of a message cannot be read: {error.rule}") from error

    def expanded(self, before: Sequence[int], tokens: list[int], messages: Sequence[Message]) -> list[int]:
        """What the template wrote of the messages behind `before`, with as many image tokens as each of their images takes in place of one.

        Raises PolicyError. The images have been read.
        """
        sources = sources_of(messages)
        if not sources or self._reader is None:
            return tokens
        marks = tokens.count(self._reader.token)
        if marks != len(sources):
            raise PolicyError(
                f"the chat template writes {marks} image tokens for {len(sources)} images: no text may hold one"
            )
        images, whole = iter([self._read[source] for source in sources]), [*before]
        for token in tokens:
            if token == self._reader.token:
                self._add(whole, next(images), token)
            else:
                whole.append(token)
        return whole[len(before) :]

    def _add(self, whole: list[int], image: Image, token: int) -> None:
        whole += [token] * image.tokens
        until = np.array(whole, np.int32)
        known = next((s for s in self._shown if np.array_equal(s.until, until)), None)
        if known is None:
            self._shown.append(_Shown(until, image))
        elif known.image is not image and known.image != image:
            if known.is_asked:
                raise PolicyError(
                    "two images of one size stand behind the same tokens: say what tells them apart before them"
                )
            known.image = image

    def asked(self, context: Ints) -> tuple[Placed, ...]:
        """Those of a context that the policy continues."""
        for shown in self._shown:
            shown.is_asked |= shown.is_in(context)
        return self.of(context)

    def of(self, tokens: Ints) -> tuple[Placed, ...]:
        """Those that stand in a sequence, in the order of their places."""
        found = {shown.start: shown.image for shown in self._shown if shown.is_in(tokens)}
        return tuple(sorted(found.items()))

    def with_images(self, segments: tuple[Segment, ...]) -> tuple[Segment, ...]:
        """A sequence whose segments hold its images. None stands in what the policy wrote."""
        placed = self.of(np.concatenate([s.tokens for s in segments])) if self._shown else ()
        if not placed:
            return segments
        starts = accumulate((len(s.tokens) for s in segments), initial=0)
        return tuple(
            replace(s, images=_within(placed, at, len(s.tokens))) for s, at in zip(segments, starts, strict=False)
        )


def _within(placed: Sequence[Placed], start: int, length: int) -> tuple[Placed, ...]:
    return tuple((place - start, image) for place, image in placed if start <= place < start + length)
