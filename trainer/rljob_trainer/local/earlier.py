"""What earlier runs have left: in the checkpoint's directory, read before any process starts: where this one continues, and that it does so with
other rewards, or has nothing left to train.
And in the user's cache: how long this machine took the last time for what a run waits for before its first step, the best prediction of how long
it takes now.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from rljob_api import names
from rljob_api.protocol import Progress
from rljob_api.spec import RLJobSpec
from rljob_api.spec.model import RewardSpec
from rljob_trainer.checkpoint.lineage import Start, inherited, named, require_alike, trained_as
from rljob_trainer.local.progress import WAITS, Wait
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
        """None: the run starts from the model. Raises ConfigurationError for a directory that holds what is no checkpoint of its own,
        and for one of a model that was trained in another way."""
        if spec.task == "service":  # its clients decide what is trained, and from where
            return None
        start = _start(spec)
        if start is None:
            return None
        if spec.checkpoint.resume != "never":
            require_alike(start.manifest, trained_as(spec))
        return Earlier(spec, start.directory, start.manifest.step)

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
        if self.spec.evaluation.only:
            yield f"evaluating {self.directory}, step {self.step}"
        elif self.is_all:
            fix = "raise spec.train.steps, or name another spec.checkpoint.path"
            if self.spec.checkpoint.resume_from:
                fix = f"raise spec.train.steps, in which these {self.step} count, or name an earlier step in spec.checkpoint.resumeFrom"
            yield f"step {self.step}{steps} is already in {self.directory}: nothing to train; {fix}"
        else:
            yield f"continuing from {self.directory}, step {self.step}{steps}"
        changed = _changed(self.spec)
        if changed:
            yield f"warning: {', '.join(changed)}: not as in the run that saved step {self.step}; {ANOTHER}"


def _start(spec: RLJobSpec) -> Start | None:
    """The checkpoint that the spec names, or else the newest one of its own directory."""
    root, named_one = Path(spec.checkpoint.path), spec.checkpoint.resume_from
    if named_one:
        return Start(Path(named_one), named(Path(named_one)))
    held = inherited(root) if root.is_dir() else []
    return Start(names.step_dir(root, held[-1].step), held[-1]) if held else None


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


MOST = 64
"""Waits that are remembered, those of the last runs."""


def remembered_in(environment: Mapping[str, str]) -> Path:
    """The file in the user's cache."""
    cache = environment.get("XDG_CACHE_HOME") or Path(environment.get("HOME", "/tmp"), ".cache")
    return Path(cache, "rljob", "waits.json")


class Waits:
    """Of a run of `spec`: waits for the same model in the same layout are alike."""

    def __init__(self, spec: RLJobSpec, file: Path | None = None):
        """`file`: where they are remembered; None: in the user's cache."""
        self._file = file or remembered_in(os.environ)
        self._of = f"{spec.model.path} {spec.trainer.device} {spec.rollout.replicas} x {spec.rollout.tensor_parallel}"
        self._known, self._phase, self._since = self._read(), "", 0.0

    def now(self, progress: Progress | None, now: float) -> Wait | None:
        """What is waited for; None: nothing that was. `now`: a monotonic time. A wait that is over is remembered."""
        waits = progress is not None and progress.phase in WAITS and not progress.history
        phase = progress.phase if progress and waits else ""
        if phase != self._phase:
            if self._phase and progress:  # else it was broken off
                self._remember(f"{self._phase} {self._of}", now - self._since)
            self._phase, self._since = phase, now
        return Wait(now - self._since, self._known.get(f"{phase} {self._of}")) if phase else None

    def _remember(self, key: str, seconds: float) -> None:
        """A cache that cannot be written is none."""
        self._known = {**{k: v for k, v in self._known.items() if k != key}, key: round(seconds, 1)}
        with contextlib.suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            replace(self._file, json.dumps(dict(list(self._known.items())[-MOST:])))

    def _read(self) -> dict[str, float]:
        """Empty when there is no file, or one that says something else."""
        try:
            content: Any = json.loads(self._file.read_text())
        except (OSError, ValueError):
            return {}
        pairs = content.items() if isinstance(content, dict) else ()
        return {k: v for k, v in pairs if isinstance(v, int | float)}
