"""What driver and helper (helper.c) say to each other, and how the helper comes into a sandbox: an init container brings it, and the token of
this pod."""

import asyncio
import hashlib
import hmac
import os
import shutil
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path

from rljob_api import names

SIZE = struct.Struct(">I")
MOST_FRAME, MOST_FIELDS = 2**22, 8
EMPTY = SIZE.pack(0)
"""The frame that says that the sender is there."""
HELPER = Path(__file__).with_name("helper")
"""Which the image holds, compiled from helper.c."""


def token_of(secret: str, pod_uid: str) -> str:
    """The token of one sandbox, which says nothing about those of others. `secret`: the job's token, which no sandbox has."""
    return hmac.new(secret.encode(), f"sandbox {pod_uid}".encode(), hashlib.sha256).hexdigest()


def frame(fields: Iterable[bytes]) -> bytes:
    body = b"".join(SIZE.pack(len(field)) + field for field in fields)
    return SIZE.pack(len(body)) + body


async def fields_of(reader: asyncio.StreamReader) -> list[bytes]:
    """The fields of the next frame. Raises OSError, EOFError, and ValueError for what is no frame of ours, before memory is allocated for it."""
    (size,) = SIZE.unpack(await reader.readexactly(SIZE.size))
    if size > MOST_FRAME:
        raise ValueError(f"a frame of {size} bytes")
    body, fields, at = await reader.readexactly(size), list[bytes](), 0
    while at < size:
        if len(fields) == MOST_FIELDS:
            raise ValueError(f"a frame of more than {MOST_FIELDS} fields")
        begin = at + SIZE.size
        end = begin + SIZE.unpack_from(body, at)[0] if begin <= size else begin
        if end > size:
            raise ValueError("a frame whose fields do not add up")
        fields.append(body[begin:end])
        at = end
    return fields


def bring(directory: Path, environment: Mapping[str, str] = os.environ) -> None:
    """`environment` has the job's token and the pod's uid (names.ENV_*)."""
    shutil.copyfile(HELPER, directory / "helper")
    (directory / "helper").chmod(0o555)
    token = token_of(environment[names.ENV_ROLLOUT_TOKEN], environment[names.ENV_POD_UID])
    (directory / "token").write_text(token)
