"""The manifest of a checkpoint: the last file of it that is written, and what makes it one."""

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
SCRATCH = ".tmp-"
"""In the name of a directory that is being written or deleted."""
READERS = 4
"""Files that are read at a time."""

Files = dict[str, tuple[int, str]]
"""Path below the checkpoint's directory -> size in bytes, sha256."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What whoever saves knows of a checkpoint."""

    step: int
    layout: str
    reshardable: bool
    """Can be loaded into any layout; else only into one that differs in nothing but its data-parallel size."""
    digest: str
    """Digest of the policy's weights, as rollouts verified it."""
    data: Mapping[str, Any]
    """State of the data cursor."""
    files: Files
    roles: Mapping[str, str] = field(default_factory=dict)
    """Layouts of the models that were trained on gangs of their own, by role; their files lie in a directory of that name inside the engine's."""

    @property
    def engine(self) -> str:
        """Directory of the engine's files inside the checkpoint's."""
        return engine_directory(self.reshardable)

    @property
    def buffer(self) -> str:
        """Likewise of what the rollout buffer held; there is none when it held nothing."""
        return buffer_directory(self.reshardable)

    def layout_of(self, role: str) -> str:
        """Of the ranks that held the role's model."""
        return self.roles.get(role, self.layout)

    def fits(self, layout: str, role: str = names.ROLE_TRAINER) -> bool:
        """Whether the role's model can be loaded into `layout`."""
        return self.reshardable or _model_part(self.layout_of(role)) == _model_part(layout)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest(Contents):
    """What a complete checkpoint says of itself."""

    seq: int
    """Number of the fence that it was made under."""
    attempt: int
    job_uid: str
    parent: int | None
    """Step of the checkpoint before it in its lineage."""
    model: str
    """Fingerprint of the configuration of the model that it belongs to."""
    time: float

    def write(self, directory: Path) -> None:
        write_json(names.manifest_file(directory), asdict(self))

    def entry(self) -> tuple[int, int]:
        """What a fence lists: (step, seq) is unique, also when a step is saved again on another branch."""
        return self.step, self.seq

    def describe(self, root: Path) -> Checkpoint:
        """For the report."""
        path = str(names.step_dir(root, self.step))
        return Checkpoint(
            step=self.step,
            attempt=self.attempt,
            path=path,
            digest=self.digest,
            layout=self.layout,
            reshardable=self.reshardable,
            time=self.time,
        )

    def damage(self, directory: Path) -> str:
        """What is wrong with its files in `directory` as far as their sizes tell; empty when nothing is."""
        for name, (size, _) in self.files.items():
            file = directory / name
            if not file.is_file():
                return f"{name} is missing"
            if file.stat().st_size != size:
                return f"{name} has {file.stat().st_size} bytes, its manifest says {size}"
        return ""

    def corruption(self, directory: Path, part: int, parts: int, tally: Tally) -> str:
        """What is wrong with the content of every `parts`-th file, from number `part` on; empty when nothing is."""
        mine = sorted(self.files)[part::parts]
        for name, found in zip(mine, _fingerprints([directory / name for name in mine], tally), strict=True):
            if found != tuple(self.files[name]):
                return f"the content of {name} is not what its manifest says"
        return ""


def engine_directory(reshardable: bool) -> str:
    """One name for each format, so that a checkpoint's directory has room for both while one takes the other's place."""
    return "megatron" if reshardable else "megatron-fixed"


def buffer_directory(reshardable: bool) -> str:
    """Likewise: the buffer may have grown since the same step was saved before."""
    return "buffer" if reshardable else "buffer-fixed"


def fingerprints(directory: Path, known: Container[str] = ()) -> Files:
    """Of every file below `directory` whose path is not in `known`."""
    paths = {name: f for f in tree(directory) if (name := str(f.relative_to(directory))) not in known}
    return dict(zip(paths, _fingerprints(paths.values(), Tally()), strict=True))


def _fingerprints(files: Iterable[Path], tally: Tally) -> list[tuple[int, str]]:
    """Several at a time: hashing lets other threads run."""
    with ThreadPoolExecutor(READERS) as pool:
        return list(pool.map(partial(fingerprint, tally=tally), files))


def read_manifests(root: Path) -> list[Manifest]:
    """All complete checkpoints in the directory, of whatever lineage, by step. A directory without a manifest is none.

    Raises ConfigurationError for a manifest that is not one of ours.
    """
    steps = [int(match[1]) for d in root.iterdir() if (match := STEP_DIRECTORY.fullmatch(d.name))]
    found = (read_manifest(names.step_dir(root, step)) for step in sorted(steps))
    return [m for m in found if m]


def read_manifest(directory: Path, field: str = PATH) -> Manifest | None:
    """What `global_step_N/` says of itself; None when it is no complete checkpoint. Raises ConfigurationError, which blames `field`."""
    if SCRATCH in directory.name:  # its manifest may be in it already, or still
        return None
    file = names.manifest_file(directory)
    try:
        manifest = Manifest(**json.loads(file.read_text()))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, TypeError) as error:
        rule = f"is not the manifest of a checkpoint of rljob: {error}"
        raise ConfigurationError(field, str(file), rule, FIX) from error
    if directory.name != f"global_step_{manifest.step}":
        rule = f"the directory is called {directory.name}, its manifest says step {manifest.step}: it was renamed or put together by hand"
        raise ConfigurationError(field, str(directory), rule, f"name it global_step_{manifest.step} again")
    return manifest


def _model_part(layout: str) -> list[str]:
    """What of `tp2-pp1-dp4-cp2` says how one copy of the model is cut."""
    return [part for part in layout.split("-") if not part.startswith("dp")]
