"""Whether a checkpoint still is what was saved: all ranks read it together."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

from rljob_trainer.checkpoint.files import Tally
from rljob_trainer.checkpoint.manifest import Manifest
from rljob_trainer.collective import Ranks


def corruption(manifest: Manifest, directory: Path, ranks: Ranks, beat: Callable[[], None]) -> str:
    """What is wrong with the content of a file in `directory`, the same on all ranks; empty when nothing is. `beat` is called while any rank reads.

    Each rank reads its share. Collective. Raises StandstillError.
    """
    tally, pool = Tally(), ThreadPoolExecutor(1)
    share = pool.submit(manifest.corruption, directory, ranks.rank, ranks.world, tally)
    pool.shutdown(wait=False)
    ranks.until(lambda seconds: bool(wait([share], seconds).done), lambda: tally.bytes, beat)
    return next(filter(None, ranks.gather(share.result())), "")
