"""Processes that tokenise while a step trains. They end with the process that started them."""

import asyncio
import multiprocessing
import os
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from functools import lru_cache
from itertools import batched
from typing import cast

from rljob_api.spec import RLJobSpec
from rljob_trainer.data.encoding import Encoder, RawRow, document
from rljob_trainer.data.examples import Example
from rljob_trainer.data.tokenizer import OffsetTokenizer, load_tokenizer
from rljob_trainer.machine import cpus

MOST = 16
"""Processes. Each makes more than one GPU trains (docs/evidence/cpus.md)."""
ROWS_PER_CALL = 16
"""At most: a call costs as much as a short row."""


def default_count(spec: RLJobSpec, available: int) -> int:
    """Worker processes in a pod with so many CPUs: those that its ranks, which keep one each busy, leave. At least 1."""
    return min(MOST, max(1, available - spec.trainer.processes_per_node))


class Workers:
    """Up to `count` processes, started when there is work for them. `count` None: default_count of this machine."""

    def __init__(self, spec: RLJobSpec, count: int | None = None):
        self._spec = spec.model_dump_json(by_alias=True)
        self._count = count or default_count(spec, cpus())
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(self._count, context, initializer=_begin)

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
    """In a worker: no torch, which tokenizers do not need, one thread, and an end when the driver ends."""
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
