"""How long this machine took the last time for what a run waits for before its first step: the best prediction of how long it takes now."""

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rljob_api.protocol import Progress
from rljob_api.spec import RLJobSpec
from rljob_trainer.local.progress import WAITS, Wait
from rljob_trainer.textfile import replace

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
            found: Any = json.loads(self._file.read_text())
        except (OSError, ValueError):
            return {}
        pairs = found.items() if isinstance(found, dict) else ()
        return {k: v for k, v in pairs if isinstance(v, int | float)}
