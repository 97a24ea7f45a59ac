"""A row to what is learnt from it: segments of tokens within the length limit. Worker processes tokenise while a step trains; they end with the
process that started them.
"""

import asyncio
import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import batched, pairwise
from typing import cast

import numpy as np

from rljob_api.spec import RLJobSpec
from rljob_trainer.data.chat import Unsound, assistant_spans, learnt_tokens, render
from rljob_trainer.data.examples import Example
from rljob_trainer.data.files import Place, Record
from rljob_trainer.data.formats import Chat, LeftOut, Texts, TextVariant, conversation, pair
from rljob_trainer.data.pictures import (
    image_reader,
    images_in,
    lifted,
    require_no_images,
    require_none_unread,
    with_parts,
)
from rljob_trainer.data.template_parts import require_written, unsaid_before_calls
from rljob_trainer.data.tokenizer import OffsetTokenizer, Vocabulary, load_tokenizer, text_tokens
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.machine import cpus
from rljob_trainer.wire.images import Image, Placed
from rljob_trainer.wire.trajectory import Bools, Ints, Segment

Encoded = tuple[Ints, Bools]
"""[T] tokens, and which of them are learnt."""
MOST = 16
"""Processes. Each makes more than one GPU trains (docs/evidence/cpus.md)."""
ROWS_PER_CALL = 16
"""At most: a call costs as much as a short row."""


@dataclass(frozen=True, slots=True)
class RawRow:
    """A row as its file holds it."""

    index: int
    record: Record
    place: Place
    format: str


class Encoder:
    """From rows to examples, for the task of `spec`."""

    def __init__(self, spec: RLJobSpec, tokenizer: OffsetTokenizer):
        self._images = image_reader(spec)
        self._data, self._paired, self._tokenizer = spec.data, spec.paired, tokenizer
        self._vocabulary = Vocabulary.of(spec)
        self._everything = spec.task == "sft" and spec.data.loss_on == "all"
        self.notes: dict[str, None] = {}
        """What was seen in the rows that is no mistake and may be meant otherwise, each once."""

    def __call__(self, row: RawRow) -> Example:
        """Raises ConfigurationError for a row of another shape than the format's, and where tokenizer or chat template cannot do their part."""
        try:
            variants, cut = self._pair(row) if self._paired else self._conversation(row)
        except LeftOut as reason:
            return Example(row.index, (), row.place.path, reason.reason)
        return Example(row.index, variants, row.place.path, cut=cut)

    def _conversation(self, row: RawRow) -> tuple[tuple[tuple[Segment, ...], ...], bool]:
        whole, images = self._read(row)
        for variant in (whole, *(shorter(whole) if self._data.overlong == "cut" else ())):
            fitting = self._fitting(variant, row.place, images)
            if fitting:
                return (fitting,), variant is not whole
        raise LeftOut("too_long")

    def _read(self, row: RawRow) -> tuple[TextVariant, list[Image]]:
        """The conversation, with its images as parts of its messages."""
        if self._images is None:
            read = conversation(row.record, row.place, self._data, row.format)
            require_none_unread(_said(read), None, lambda: row.record, row.place)
            return read, []
        record, sources = lifted(row.record, self._images.key, row.place)
        whole = conversation(record, row.place, self._data, row.format)
        if isinstance(whole, Texts):
            require_no_images(sources, row.place)
            return whole, []
        images = [self._images.read(source, row.place) for source in sources]
        return replace(whole, messages=with_parts(whole.messages, len(images), row.place)), images

    def _pair(self, row: RawRow) -> tuple[tuple[tuple[Segment, ...], ...], bool]:
        """Pairs are left out instead of cut: an answer that is cut is not the one that was compared."""
        variants = pair(row.record, row.place, self._data, row.format)
        require_none_unread((text for v in variants for text in _said(v)), None, lambda: row.record, row.place)
        fitting = [self._fitting(v, row.place) for v in variants]
        if all(fitting):
            _require_two_answers(*fitting)
            return tuple(fitting), False
        raise LeftOut("too_long")

    def _fitting(self, variant: TextVariant, place: Place, images: Sequence[Image] = ()) -> tuple[Segment, ...]:
        """Empty when it is longer than maxTokens. `images`: of the whole conversation."""
        tokens, learnt = encode(variant, place, self._tokenizer)
        self._note(variant)
        if self._vocabulary:
            self._vocabulary.require(tokens, place, self._tokenizer)
        if self._everything:
            learnt[:] = True
        placed: tuple[Placed, ...] = ()
        if self._images and isinstance(variant, Chat):
            images = images[: images_in(variant.messages)]
            tokens, learnt = self._images.expanded(tokens, learnt, [image.tokens for image in images], place)
            placed = self._images.placed(tokens, images)
        learnt[:1] = False  # nothing comes before it that could predict it
        if not learnt.any():
            raise LeftOut("empty")
        fitting = segments(tokens, learnt, placed)
        return fitting if sum(len(s.tokens) for s in fitting) <= self._data.max_tokens else ()

    def _note(self, variant: TextVariant) -> None:
        if isinstance(variant, Chat):
            note = unsaid_before_calls(self._tokenizer, variant.messages, variant.tools, variant.arguments)
            self.notes |= {note: None} if note else {}


def _require_two_answers(chosen: Sequence[Segment], rejected: Sequence[Segment]) -> None:
    """Raises LeftOut where the template writes both in the same way: they differ in what it does not read."""
    tokens = [[token for segment in answer for token in segment.tokens.tolist()] for answer in (chosen, rejected)]
    if tokens[0] == tokens[1]:
        raise LeftOut("equal_pair")


def _said(variant: TextVariant) -> list[str]:
    """What the others said: the assistant may speak of images as it likes."""
    if isinstance(variant, Texts):
        return [variant.prompt]
    return [message["content"] for message in variant.messages if message["role"] != "assistant"]


def encode(variant: TextVariant, place: Place, tokenizer: OffsetTokenizer) -> Encoded:
    """Raises ConfigurationError, which names the row."""
    try:
        encoded = _texts(variant, tokenizer) if isinstance(variant, Texts) else _chat(variant, tokenizer)
    except Unsound as unsound:
        raise place.error(unsound.rule, unsound.fix) from unsound
    except Exception as error:  # templates are programs, and raise what they like, as the tokenizers library does
        rule = f"the model's tokenizer or chat template refuses the row: {type(error).__name__}: {error}"
        raise place.error(rule, "correct the row (many templates know no system role and want turns)") from error
    if isinstance(variant, Chat):
        require_written(tokenizer, variant.messages, variant.tools, variant.arguments, place)
    return encoded


def shorter(variant: TextVariant) -> Iterator[TextVariant]:
    """A conversation without its last turns of the assistant, one after another."""
    if isinstance(variant, Texts):
        return
    turns = [i for i, message in enumerate(variant.messages) if message["role"] == "assistant"]
    only_last = variant.learn_from == turns[-1]
    for turn in reversed([i for i in turns[:-1] if i not in variant.silent]):
        yield replace(
            variant, messages=variant.messages[: turn + 1], learn_from=turn if only_last else variant.learn_from
        )


def segments(tokens: Ints, learnt: Bools, images: Sequence[Placed] = ()) -> tuple[Segment, ...]:
    """Runs of tokens that are given or learnt, with the images in them; what comes behind the last learnt one is nobody's context."""
    edges = [0, *(np.flatnonzero(np.diff(learnt)) + 1).tolist(), len(tokens)]
    runs = list(pairwise(edges))
    if not learnt[-1]:
        runs.pop()
    return tuple(_segment(tokens, a, b, bool(learnt[a]), images) for a, b in runs)


def _segment(tokens: Ints, a: int, b: int, learnt: bool, images: Sequence[Placed]) -> Segment:
    inside = tuple((start - a, image) for start, image in images if a <= start < b)
    return Segment(tokens[a:b], "demonstration" if learnt else "environment" if a else "prompt", images=inside)


def _texts(texts: Texts, tokenizer: OffsetTokenizer) -> Encoded:
    """The prompt as rollouts get it, the response, and the end-of-sequence token."""
    prompt = text_tokens(tokenizer, texts.prompt)
    response = tokenizer.encode(texts.response, add_special_tokens=False)
    tokens = np.array([*prompt, *response, tokenizer.eos_token_id], np.int32)
    return tokens, np.arange(len(tokens)) >= len(prompt)


def _chat(chat: Chat, tokenizer: OffsetTokenizer) -> Encoded:
    text = render(tokenizer, chat)
    spans = assistant_spans(tokenizer, chat, text)
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    return np.array(encoded["input_ids"], np.int32), learnt_tokens(text, encoded["offset_mapping"], spans)


def document(text: str, tokenizer: OffsetTokenizer) -> list[int]:
    """A text of `pretrain`: with the tokenizer's own special tokens, and the end of sequence behind it. Empty when there is no text."""
    if not text.strip():
        return []
    tokens, end = text_tokens(tokenizer, text), [tokenizer.eos_token_id]
    return tokens if tokens[-1:] == end else tokens + end


def require(tokenizer: OffsetTokenizer, chats: bool) -> None:
    """Raises ConfigurationError for a tokenizer that cannot tell which tokens are the assistant's (`chats`), or has no end of sequence."""
    rule, fix = "", "use a tokenizer that has one, or put it into tokenizer_config.json"
    if chats and not tokenizer.chat_template:
        rule = "the tokenizer has no chat template, which conversations need"
        fix = "put one (chat_template.jinja) next to the tokenizer's files, or write the data as texts in a prompt and a response column"
    elif chats and not tokenizer.is_fast:
        rule = (
            "the tokenizer does not say where in a text its tokens lie, so that nobody knows which are the assistant's"
        )
        fix = "add a tokenizer.json, which AutoTokenizer(use_fast=True).save_pretrained writes"
    elif tokenizer.eos_token_id is None:
        rule = "the tokenizer has no end-of-sequence token, so that the model would never learn to end"
    if rule:
        raise ConfigurationError("spec.model.path", getattr(tokenizer, "name_or_path", ""), rule, fix)


def default_count(spec: RLJobSpec, available: int) -> int:
    """Worker processes in a pod with so many CPUs: those that its ranks, which keep one each busy, leave. At least 1."""
    return min(MOST, max(1, available - spec.trainer.processes_per_node))


class EncodingWorkers:
    """Up to `count` processes. `count` None: default_count of this machine.

    `forked`: they are forked at once, from a process that has no threads yet and imports what they need anyway, as the driver has: an attempt begins
    seconds earlier, which a new process takes to import transformers. Otherwise they are started when there is work for them.
    """

    def __init__(self, spec: RLJobSpec, count: int | None = None, forked: bool = False):
        self._spec = spec.model_dump_json(by_alias=True)
        self._count = count or default_count(spec, cpus())
        context = multiprocessing.get_context("fork" if forked else "spawn")
        self._pool = ProcessPoolExecutor(self._count, context, initializer=_begin)
        if forked:
            self._pool.submit(os.getpid)  # the first call forks all of them

    async def encode(self, rows: Sequence[RawRow]) -> list[Example]:
        """In their order, by all processes. Raises what the encoder raises."""
        calls = [self._pool.submit(_encode, self._spec, part) for part in batched(rows, self._share(len(rows)))]
        return [example for part in await asyncio.gather(*map(asyncio.wrap_future, calls)) for example in part]

    def tokenise(self, texts: Iterable[str]) -> Iterator[list[int]]:
        """Token ids of each text, in their order, with no more of them in memory than keep all processes busy."""
        calls: deque[Future[list[list[int]]]] = deque()
        for part in batched(texts, ROWS_PER_CALL):
            calls.append(self._pool.submit(_tokenise, self._spec, part))
            if len(calls) > 4 * self._count:
                yield from calls.popleft().result()
        for call in calls:
            yield from call.result()

    def _share(self, rows: int) -> int:
        """Rows of a call, so that each process has two of them or more: conversations differ in length."""
        return max(1, min(ROWS_PER_CALL, rows // (2 * self._count)))

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


def _begin() -> None:
    """In a worker: no torch, which tokenizers do not need, one thread, and an end when the driver ends. SIGTERM ends it without the stack traces that
    the driver writes, from which it may have been forked."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    threading.Thread(target=_follow_parent, daemon=True).start()


def _follow_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(0)


@lru_cache(maxsize=1)
def _encoder(spec: str) -> tuple[Encoder, OffsetTokenizer]:
    read = RLJobSpec.model_validate_json(spec)
    tokenizer = cast(OffsetTokenizer, load_tokenizer(read))
    return Encoder(read, tokenizer), tokenizer


def _encode(spec: str, rows: Sequence[RawRow]) -> list[Example]:
    return [_encoder(spec)[0](row) for row in rows]


def _tokenise(spec: str, texts: Sequence[str]) -> list[list[int]]:
    return [document(text, _encoder(spec)[1]) for text in texts]
