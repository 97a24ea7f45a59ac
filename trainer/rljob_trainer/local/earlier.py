"""What an earlier run has left in the checkpoint's directory, read before any process starts: where this one continues, and that it does so with
other rewards, or has nothing left to train.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from rljob_api import names
from rljob_api.spec import RLJobSpec
from rljob_api.spec.model import RewardSpec
from rljob_trainer.checkpoint.lineage import inherited, named
from rljob_trainer.textfile import read_text, replace

REWARDS = "rewards.json"
"""Below checkpoint.path: a digest of each entry of spec.rewards with the file that it names, of the last run on this machine."""
ANOTHER = "a new experiment needs another spec.checkpoint.path"


@dataclass(frozen=True)
class Earlier:
    """The checkpoint that a run starts from."""

    spec: RLJobSpec
    directory: Path
    step: int

    @staticmethod
    def of(spec: RLJobSpec) -> "Earlier | None":
        """None: the run starts from the model. Raises ConfigurationError for a directory that holds what is no checkpoint of its own."""
        if spec.task == "service":  # its clients decide what is trained, and from where
            return None
        root, start = Path(spec.checkpoint.path), spec.checkpoint.resume_from
        if start:
            return Earlier(spec, Path(start), named(Path(start)).step)
        held = inherited(root) if root.is_dir() else []
        return Earlier(spec, names.step_dir(root, held[-1].step), held[-1].step) if held else None

    @property
    def is_all(self) -> bool:
        """Whether all steps are done. The steps of `epochs` are not known yet."""
        return self.spec.train.steps is not None and self.step >= self.spec.train.steps

    @property
    def leaves_nothing(self) -> bool:
        """Whether the run is over: all steps are done, and the model is exported if it is to be."""
        checkpoint, root = self.spec.checkpoint, self.directory.parent
        lacks = checkpoint.export_hugging_face and not names.huggingface_dir(root, self.step).is_dir()
        is_own = root.resolve() == Path(checkpoint.path).resolve()
        resumes = checkpoint.resume != "never" and not self.spec.evaluation.only and not checkpoint.upload
        return self.is_all and is_own and resumes and not lacks

    def lines(self) -> Iterator[str]:
        """What the user should know of it."""
        steps = f" of {self.spec.train.steps}" if self.spec.train.steps else ""
        if self.is_all and not self.spec.evaluation.only:
            fix = "raise spec.train.steps, or name another spec.checkpoint.path"
            yield f"step {self.step}{steps} is already in {self.directory}: nothing to train; {fix}"
        else:
            yield f"continuing from {self.directory}, step {self.step}{steps}"
        if changed := _changed(self.spec):
            yield f"warning: {', '.join(changed)}: not as in the run that saved step {self.step}; {ANOTHER}"


def last_attempt(root: Path) -> int:
    """The greatest number of an attempt of an earlier run, whose logs those of this one must not continue; 0: there was none."""
    numbers = (directory.name.rpartition("-")[2] for directory in names.log_dir(root, 0).parent.glob("attempt-*"))
    return max((int(number) for number in numbers if number.isdecimal()), default=0)


def remember_rewards(spec: RLJobSpec) -> None:
    """For the next run in this directory, whose paths of this machine `spec` has. Raises OSError."""
    if spec.rewards:
        root = Path(spec.checkpoint.path)
        root.mkdir(parents=True, exist_ok=True)
        replace(root / REWARDS, json.dumps([_digest(entry) for entry in spec.rewards]))


def _changed(spec: RLJobSpec) -> list[str]:
    """Entries of spec.rewards that the last run had otherwise, or not at all; empty where nothing is known of it."""
    try:
        before = json.loads(read_text(Path(spec.checkpoint.path) / REWARDS) or "null")
    except ValueError:
        return []
    now = [_digest(entry) for entry in spec.rewards]
    pairs = enumerate(zip_longest(before, now)) if isinstance(before, list) else ()
    return [_named(spec, i) for i, (old, new) in pairs if old != new]


def _named(spec: RLJobSpec, number: int) -> str:
    """An entry, with its file."""
    field, entry = f"spec.rewards[{number}]", spec.rewards[number] if number < len(spec.rewards) else None
    return f"{field}.python.path = {entry.python.path}" if entry and entry.python else field


def _digest(entry: RewardSpec) -> str:
    """Of the entry, and of what its file says."""
    file = Path(entry.python.path) if entry.python else None
    content = file.read_bytes() if file and file.is_file() else b""
    return hashlib.sha256(entry.model_dump_json().encode() + b"\0" + content).hexdigest()
