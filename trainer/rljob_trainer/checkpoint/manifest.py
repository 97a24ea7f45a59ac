"""The manifest of a checkpoint: the last file of it that is written, and what makes it one."""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from rljob_api import names
from rljob_api.protocol import Checkpoint
from rljob_trainer.checkpoint.files import fingerprint, tree, write_json

STEP_DIRECTORY = re.compile(r"global_step_(\d+)")

Files = dict[str, tuple[int, str]]
"""Path below the checkpoint's directory -> size in bytes, sha256."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a complete checkpoint says of itself."""

    step: int
    seq: int
    """Number of the fence that it was made under."""
    attempt: int
    job_uid: str
    parent: int | None
    """Step of the checkpoint before it in its lineage."""
    layout: str
    reshardable: bool
    digest: str
    """Digest of the policy's weights, as rollouts verified it."""
    model: str
    """Fingerprint of the configuration of the model that it belongs to."""
    data: Mapping[str, int]
    """State of the data cursor."""
    time: float
    files: Files

    def write(self, root: Path) -> None:
        write_json(names.manifest_file(root, self.step), asdict(self))

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

    def damage(self, root: Path) -> str:
        """What is wrong with its files as far as their sizes tell; empty when nothing is."""
        for name, (size, _) in self.files.items():
            file = names.step_dir(root, self.step) / name
            if not file.is_file():
                return f"{name} is missing"
            if file.stat().st_size != size:
                return f"{name} has {file.stat().st_size} bytes, its manifest says {size}"
        return ""

    def corruption(self, root: Path, part: int, parts: int) -> str:
        """What is wrong with the content of every `parts`-th file, from number `part` on; empty when nothing is."""
        for name in sorted(self.files)[part::parts]:
            if fingerprint(names.step_dir(root, self.step) / name) != tuple(self.files[name]):
                return f"the content of {name} is not what its manifest says"
        return ""


def fingerprints(directory: Path, part: int, parts: int) -> Files:
    """Of every `parts`-th file below `directory`, from number `part` on: ranks share the reading."""
    return {str(f.relative_to(directory)): fingerprint(f) for f in tree(directory)[part::parts]}


def read_manifests(root: Path) -> list[Manifest]:
    """All complete checkpoints in the directory, of whatever lineage, by step. A directory without a manifest is none."""
    found = []
    for directory in root.iterdir():
        match = STEP_DIRECTORY.fullmatch(directory.name)
        if match and (manifest := read_manifest(root, int(match[1]))):
            found.append(manifest)
    return sorted(found, key=lambda m: m.step)


def read_manifest(root: Path, step: int) -> Manifest | None:
    """None when there is no complete checkpoint of that step."""
    try:
        content = json.loads(names.manifest_file(root, step).read_text())
    except FileNotFoundError:
        return None
    return Manifest(**content)
