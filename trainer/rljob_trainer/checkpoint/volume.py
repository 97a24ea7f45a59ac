"""Proof that all ranks see one file system: rank 0 writes a nonce, every rank reads it back."""

import secrets
import time
from pathlib import Path

from rljob_trainer.failure import ConfigurationError

WAIT_SECONDS = 30.0
"""Network file systems show a new name to other nodes after their attribute cache expires."""


def write_nonce(root: Path) -> str:
    """On rank 0, in a directory that exists."""
    nonce = secrets.token_hex(16)
    (root / f".nonce-{nonce}").write_text(nonce)
    return nonce


def sees_nonce(root: Path, nonce: str) -> bool:
    """On every rank."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not (root / f".nonce-{nonce}").is_file():
        if time.monotonic() > deadline:
            return False
        list(root.glob(".nonce-*"))  # a listing refreshes what a lookup may have cached as missing
        time.sleep(0.1)
    return True


def remove_nonce(root: Path, nonce: str) -> None:
    (root / f".nonce-{nonce}").unlink(missing_ok=True)


def require_shared(root: Path, blind_ranks: list[int]) -> None:
    """Raises ConfigurationError when some ranks did not see the nonce."""
    if blind_ranks:
        rule = f"ranks {', '.join(map(str, blind_ranks))} see another file system there than rank 0"
        fix = "mount one ReadWriteMany volume at that path in all trainer pods, through spec.volumes"
        raise ConfigurationError("spec.checkpoint.path", str(root), rule, fix)
