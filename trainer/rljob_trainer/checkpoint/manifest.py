"""The manifest of a checkpoint. It is written last, so a directory with a manifest is a complete checkpoint."""

import json
import re
from collections.abc import Container, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rljob_api import names
from rljob_api.protocol import Checkpoint
from rljob_trainer.checkpoint.files import Tally, fingerprint, tree, write_json
from rljob_trainer.failure import ConfigurationError

PATH = "spec.checkpoint.path"
FIX = "restore it from where it was copied, or move the directory away"
STEP_DIRECTORY = re.compile(r"global_step_(\d+)")
ENGINE = "megatron"
"""The engine's directory inside the checkpoint's."""
BUFFERS = ("buffer", "buffer-drained")
"""Names of the rollout buffer's directory inside it: the second where a drain has saved the buffer of a complete checkpoint again."""
SCRATCH = ".tmp-"
"""In the name of a directory that is being written or deleted."""
READERS = 4
"""Files that are read concurrently."""

Files = dict[str, tuple[int, str]]
"""Path below the checkpoint's directory -> size in bytes, sha256."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """The part of a manifest that the saver knows. The store adds the rest."""

    step: int
    layout: str
    digest: str
    """Digest of the policy's weights, as rollouts verified it."""
    data: Mapping[str, Any]
    """State of the data cursor."""
    files: Files
    buffer: str = BUFFERS[0]
    """Name of the rollout buffer's directory, which is absent when the buffer was empty."""
    roles: Mapping[str, str] = field(default_factory=dict)
    """[role] -> layout of each model that was trained on a gang of its own. Its files are in a directory of that name inside the engine's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointManifest(Contents):
    """The manifest of a complete checkpoint."""

    seq: int
    """Number of the fence under which it was made."""
    attempt: int
    job_uid: str
    parent: int | None
    """Step of the previous checkpoint in its lineage."""
    model: str
    """See lineage.Run.model."""
    time: float
    chat: Mapping[str, Any] = field(default_factory=dict)
    """See lineage.Run.chat."""
    trained: Mapping[str, Any] = field(default_factory=dict)
    """See lineage.trained_as."""

    def write(self, directory: Path) -> None:
        write_json(names.manifest_file(directory), asdict(self))

    def entry(self) -> tuple[int, int]:
        """(step, seq), by which a fence lists it: unique even when a step is trained and saved again after going back."""
        return self.step, self.seq

    def describe(self, root: Path) -> Checkpoint:
        """The checkpoint in the words of the report."""
        path = str(names.step_dir(root, self.step))
        return Checkpoint(
            step=self.step,
            attempt=self.attempt,
            path=path,
            digest=self.digest,
            layout=self.layout,
            time=self.time,
        )

    def damage(self, directory: Path) -> str:
        """Check that all files exist and have the right sizes. Returns what is wrong; empty: nothing."""
        for name, (size, _) in self.files.items():
            file = directory / name
            if not file.is_file():
                return f"{name} is missing"
            if file.stat().st_size != size:
                return f"{name} has {file.stat().st_size} bytes, its manifest says {size}"
        return ""

    def corruption(self, directory: Path, part: int, parts: int, tally: Tally) -> str:
        """Compare the content of every `parts`-th file, from number `part` on. Returns what is wrong; empty: nothing."""
        mine = sorted(self.files)[part::parts]
        for name, now in zip(mine, _fingerprints([directory / name for name in mine], tally), strict=True):
            if now != tuple(self.files[name]):
                return f"the content of {name} is not what its manifest says"
        return ""


def fingerprints(directory: Path, known: Container[str] = ()) -> Files:
    """Fingerprints of all files below `directory`, except those in `known`."""
    by_name = {str(f.relative_to(directory)): f for f in tree(directory)}
    paths = {name: f for name, f in by_name.items() if name not in known}
    return dict(zip(paths, _fingerprints(paths.values(), Tally()), strict=True))


def _fingerprints(files: Iterable[Path], tally: Tally) -> list[tuple[int, str]]:
    """Several at a time: hashlib releases the GIL."""
    with ThreadPoolExecutor(READERS) as pool:
        return list(pool.map(partial(fingerprint, tally=tally), files))


def read_manifests(root: Path) -> list[CheckpointManifest]:
    """Manifests of all complete checkpoints in the directory, of any lineage, by step.

    Raises ConfigurationError for a manifest that is not one of ours.
    """
    matches = (STEP_DIRECTORY.fullmatch(d.name) for d in root.iterdir())
    steps = [int(match[1]) for match in matches if match]
    manifests = (read_manifest(names.step_dir(root, step)) for step in sorted(steps))
    return [m for m in manifests if m]


def read_manifest(directory: Path, field: str = PATH) -> CheckpointManifest | None:
    """The manifest in `global_step_N/`; None when that is not a complete checkpoint. Raises ConfigurationError, of `field`, for a bad manifest."""
    if SCRATCH in directory.name:  # being written or deleted: it may hold a manifest all the same
        return None
    file = names.manifest_file(directory)
    try:
        manifest = CheckpointManifest(**json.loads(file.read_text()))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, TypeError) as error:
        rule = f"is not the manifest of a checkpoint of rljob: {error}"
        raise ConfigurationError(field, str(file), rule, FIX) from error
    if directory.name != f"global_step_{manifest.step}":
        rule = f"the directory is called {directory.name}, its manifest says step {manifest.step}: it was renamed or put together by hand"
        raise ConfigurationError(field, str(directory), rule, f"name it global_step_{manifest.step} again")
    return manifest
