"""Validation of large specs, away from the event loop.

A small spec is validated where it is needed (cache/jobs.py), in a few milliseconds. A large one, or one whose rules cost more than anybody has
thought of, would keep the loop from renewing the operator's lease. So it is validated in a process of its own: a thread would hold Python's lock.
"""

import asyncio
import pickle
import subprocess
import sys
from dataclasses import dataclass
from subprocess import PIPE

from rljob_api.rules import ValidationResult, Violation
from rljob_api.rules.validator import extent_violations
from rljob_operator.cache.jobs import LazyValidation
from rljob_operator.kube.api import Key
from rljob_operator.times import stamp

CPU_SECONDS, MEMORY = 0.5, 256 * 2**20
"""Processor time and bytes of data that the validation of one spec may take. The largest that is allowed takes an eighth of it."""
BUSY = 1.0
"""Seconds until a large spec is tried again while another one is validated."""
PATIENCE = 60.0
"""Seconds by the clock, on a machine that is busy with other things."""
FIRST_PAUSE, LONGEST_PAUSE = 60.0, 3600.0
"""Seconds until a job whose spec has exceeded the limits is validated again: doubles with each excess in a row, also of a changed spec."""


@dataclass(frozen=True, slots=True)
class Excess:
    """A job whose spec has exceeded the limits."""

    pause: float = FIRST_PAUSE
    until: float = 0.0
    """When it is validated again, in seconds since the epoch."""

    def longer(self, now: float) -> "Excess":
        return Excess(min(2 * self.pause, LONGEST_PAUSE), now + self.pause)

    def waits(self, now: float) -> bool:
        """An end that is further away than any can be was set before the clock was set back."""
        return now < self.until <= now + LONGEST_PAUSE


class LargeSpecs:
    """One large spec is validated at a time, so that their number does not matter. The others come back, and keep no worker of the queue waiting."""

    def __init__(self, cpu_seconds: float = CPU_SECONDS) -> None:
        self._cpu_seconds = cpu_seconds
        self._excess: dict[Key, Excess] = {}
        self._turn = asyncio.Lock()

    async def settle(self, job: Key, validation: LazyValidation, now: float) -> float | None:
        """Validates the spec if that has not been done. Returns the seconds after which it has to be done again; None: the result is known."""
        if validation.is_known:
            return None
        if beyond := tuple(extent_violations(validation.raw)):
            validation.result = ValidationResult(None, beyond)
            return None
        excess = self._excess.get(job, Excess())
        if not excess.waits(now):
            if self._turn.locked():
                return BUSY
            async with self._turn:
                result = await self._validated(validation)
            if result:
                self.forget(job)
                validation.result = result
                return None
            excess = excess.longer(now)
        self._excess[job] = excess
        validation.postpone(_too_slow(self._cpu_seconds, excess.until))
        return excess.until - now

    def forget(self, job: Key) -> None:
        self._excess.pop(job, None)

    async def _validated(self, validation: LazyValidation) -> ValidationResult | None:
        """The result of a process of its own; None: it has exceeded its limits."""
        given = pickle.dumps((validation.policy, validation.raw, validation.name))
        process = _started(self._cpu_seconds)
        try:
            answer, _ = await asyncio.to_thread(process.communicate, given, PATIENCE)
        except subprocess.TimeoutExpired:
            return None
        finally:
            process.kill()
            process.wait()
        result: ValidationResult | None = pickle.loads(answer) if process.returncode == 0 else None
        return result


def _started(cpu_seconds: float) -> "subprocess.Popen[bytes]":
    """The process that checks one spec. asyncio's own cannot be cancelled while it starts (github.com/python/cpython/issues/119710)."""
    command = (sys.executable, "-m", "rljob_operator.reconcile.check_spec", str(cpu_seconds), str(MEMORY))
    return subprocess.Popen(command, stdin=PIPE, stdout=PIPE)


def _too_slow(cpu_seconds: float, until: float) -> Violation:
    rule = f"cannot be checked in {cpu_seconds:g} s of processor time, and is checked again after {stamp(until)}"
    return Violation("spec", "set", rule, "write a smaller spec, with fewer mistakes")
