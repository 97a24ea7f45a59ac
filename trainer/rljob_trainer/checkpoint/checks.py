"""Checks that all ranks make together: that they share a file system, and that a checkpoint is still what was saved."""

import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

from rljob_trainer.checkpoint.fence import newest
from rljob_trainer.checkpoint.files import Tally, appears
from rljob_trainer.checkpoint.manifest import CheckpointManifest
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.wire.collective import Ranks


def prove_shared(root: Path, ranks: Ranks) -> None:
    """Raise ConfigurationError when some rank does not see a file that rank 0 has written. Collective."""
    nonce = ranks.broadcast(write_nonce(root) if ranks.is_first else None)
    seen = ranks.gather(sees_nonce(root, nonce))
    if ranks.is_first:
        remove_nonce(root, nonce)
    require_shared(root, [rank for rank, saw in enumerate(seen) if not saw])


def prove_fence(root: Path, job_uid: str, attempt: int, ranks: Ranks) -> None:
    """Raise ConfigurationError when some rank of this gang does not see the fence that the trainer's rank 0 has made. Collective."""
    seen = ranks.gather(sees_fence(root, job_uid, attempt))
    require_shared(root, [rank for rank, saw in enumerate(seen) if not saw], than="the trainer")


def sees_fence(root: Path, job_uid: str, attempt: int) -> bool:
    """Whether this rank sees the fence of the attempt. For every rank."""

    def is_ours() -> bool:
        fence = newest(root)
        return fence is not None and (fence.job_uid, fence.attempt) == (job_uid, attempt)

    return appears(root, is_ours)


def write_nonce(root: Path) -> str:
    """Write the nonce into an existing directory. For rank 0."""
    nonce = secrets.token_hex(16)
    (root / f".nonce-{nonce}").write_text(nonce)
    return nonce


def sees_nonce(root: Path, nonce: str) -> bool:
    """Whether this rank sees the nonce. For every rank."""
    return appears(root, (root / f".nonce-{nonce}").is_file)


def remove_nonce(root: Path, nonce: str) -> None:
    (root / f".nonce-{nonce}").unlink(missing_ok=True)


def require_shared(root: Path, blind_ranks: list[int], than: str = "rank 0") -> None:
    """Raises ConfigurationError when some ranks did not see what `than` wrote."""
    if blind_ranks:
        rule = f"ranks {', '.join(map(str, blind_ranks))} see another file system there than {than}"
        fix = "mount one ReadWriteMany volume at that path in all pods of ranks, through spec.volumes"
        raise ConfigurationError("spec.checkpoint.path", str(root), rule, fix)


def corruption(manifest: CheckpointManifest, directory: Path, ranks: Ranks, heartbeat: Callable[[], None]) -> str:
    """Compare all files of a checkpoint with its manifest. Returns what is wrong with the first bad one, the same on all ranks; empty: nothing.

    Each rank reads a share of the files. `heartbeat` is called while any rank makes progress. Collective. Raises StandstillError.
    """
    tally, pool = Tally(), ThreadPoolExecutor(1)
    share = pool.submit(manifest.corruption, directory, ranks.rank, ranks.world, tally)
    pool.shutdown(wait=False)

    def is_read(seconds: float) -> bool:
        return bool(wait([share], seconds).done)

    ranks.until(is_read, lambda: tally.bytes, heartbeat)
    return next(filter(None, ranks.gather(share.result())), "")
