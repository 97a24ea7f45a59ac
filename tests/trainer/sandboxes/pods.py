"""Pods of sandboxes, which here are processes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from rljob_api.protocol import SandboxAddress
from trainer.sandboxes.helpers import UID, running

PROMPT = 20.0


def address(port: int, uid: str = UID) -> SandboxAddress:
    return SandboxAddress(pod_uid=uid, address=f"127.0.0.1:{port}")


@asynccontextmanager
async def pods(root: Path, count: int) -> AsyncIterator[list[tuple[asyncio.subprocess.Process, int]]]:
    """Helpers of as many sandboxes. In these tests they have one token: uids differ, and `token_of` is replaced."""
    async with AsyncExitStack() as stack:
        found = []
        for i in range(count):
            (root / f"pod-{i}").mkdir()
            found.append(await stack.enter_async_context(running(root / f"pod-{i}")))
        yield found
