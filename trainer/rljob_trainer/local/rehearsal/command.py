"""`python -m rljob_trainer try`: load as `run` does, rehearse, show, and say what is wrong."""

import asyncio
import logging
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from rljob_api.manifest import ManifestError
from rljob_api.rules.advice import advice
from rljob_api.rules.unread import unread
from rljob_api.spec import RLJobSpec
from rljob_trainer.checkpoint.exports import beginning_from, newest_export
from rljob_trainer.data.tokenizer import Tokenizer, load_tokenizer, template_warnings, unwritten
from rljob_trainer.driver.buffer.assembly import Outcome
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.local.manifest import STARTING_POINTS, Job, load
from rljob_trainer.local.rehearsal.examples import SupervisedRows
from rljob_trainer.local.rehearsal.findings import Findings, Screen, extent, indented, shortened
from rljob_trainer.local.rehearsal.policy import Script
from rljob_trainer.local.rehearsal.rows import Rehearsal, TriedFile, TriedRow
from rljob_trainer.wire.trajectory import Trajectory

READ = ("model", "data", "rewards", "evaluation", "rollout")
"""Sections of the spec that name what a rehearsal reads."""
MOST = 2000
"""Rows of each file that are read, unless all are asked for."""


def rehearse(
    manifest: Path,
    mounts: list[str],
    settings: Sequence[str],
    shown: int,
    said: Sequence[str],
    everything: bool,
    colour: bool,
) -> int:
    """Print what the job's data, rewards and agent do. The exit code: 0, or 1 after a mistake.

    Args:
        shown: rows of each file
        said: turns of the policy in place of a row's answer; `{answer}` stands for it
        everything: read all rows of each file
    """
    began = time.monotonic()
    try:
        job = load(manifest, mounts, settings, needed=_is_read)
        _require_fetched(job)
        job = _with_export(job)
        tokenizer = load_tokenizer(job.spec)
        with tempfile.TemporaryDirectory(prefix="rljob-try-") as scratch:
            findings, screen = Findings(job.spec, tokenizer), Screen(colour)
            findings.notes += [str(unusual) for unusual in (*advice(job.spec), *unread(job.spec))]
            findings.notes += template_warnings(job.spec, tokenizer)
            most = None if everything else MOST
            if job.spec.supervised:
                for line in SupervisedRows(job.spec, tokenizer, screen, findings, Path(scratch), shown, most).lines():
                    print(line)
            else:
                rehearsal = Rehearsal(job.spec, tokenizer, Path(scratch), most, said)
                asyncio.run(_reinforcement(rehearsal, findings, Page(job.spec, tokenizer, screen, shown)))
    except (ManifestError, ConfigurationError) as error:
        print(error, file=sys.stderr)
        return 1
    return _ended(findings, job.name, time.monotonic() - began)


def _is_read(field: str) -> bool:
    starts = field.endswith(".megatronCheckpoint") or field in STARTING_POINTS
    return field.split(".")[1].partition("[")[0] in READ and not starts


def _require_fetched(job: Job) -> None:
    """Raises ConfigurationError for a model that a job would copy first."""
    for name, source in job.spec.sources.items():
        path = Path(job.spec.model.path)
        if path.is_relative_to(source.path) and not path.is_dir():
            rule = f"a job copies it from {source.source} first ({name}.source), and it is not on this machine"
            fix = f"copy it: python -m rljob_trainer fetch {source.source} {source.path}"
            raise ConfigurationError("spec.model.path", job.spec.model.path, rule, fix)


def _with_export(job: Job) -> Job:
    """With the model that is meant where the spec names a run."""
    export = newest_export(Path(job.spec.model.path))
    if export:
        return replace(job, spec=beginning_from(job.spec, export))
    return job


async def _reinforcement(rehearsal: Rehearsal, findings: Findings, page: "Page") -> None:
    async with rehearsal.started() as mistakes:
        for mistake in mistakes:
            findings.refuse(mistake)
        async for tried in rehearsal.files():
            if isinstance(tried, ConfigurationError):
                findings.refuse(tried)
                continue
            findings.add(tried)
            for mistake in rehearsal.missing_answers(tried):
                findings.refuse(mistake)
            for line in page.file(tried):
                print(line)


class Page:
    """What is shown of prompts and their samples."""

    def __init__(self, spec: RLJobSpec, tokenizer: Tokenizer, screen: Screen, shown: int):
        self._spec, self._tokenizer, self._screen, self._shown = spec, tokenizer, screen, shown

    def file(self, file: TriedFile) -> Iterator[str]:
        counts, lengths = file.prompts.counts, [len(row.prompt.tokens) for row in file.rows]
        left_out = f", {counts.too_long} longer than maxPromptTokens are left out" if counts.too_long else ""
        rows = f"first {counts.rows}" if counts.rows == MOST else f"{counts.rows}"
        yield f"{file.place.field} = {file.place.path}: {rows} rows{left_out}; prompts of {extent(lengths)} tokens"
        for row in file.rows[: self._shown]:
            yield from self._row(row)

    def _row(self, row: TriedRow) -> Iterator[str]:
        prompt = row.prompt
        source = f", data source {prompt.data_source!r}" if prompt.data_source else ""
        yield f"  row {prompt.index + 1}: {len(prompt.tokens)} tokens, answer {shortened(prompt.answer)!r}{source}"
        yield indented(shortened(prompt.text))
        for script, outcome in row.samples:
            yield from self._sample(script, outcome)

    def _sample(self, script: Script, outcome: Outcome) -> Iterator[str]:
        if not isinstance(outcome.result, Trajectory):
            yield f"    {script.name:<22} no reward: {outcome.result.reason}"
            return
        own = "".join(f", {name} {value:g}" for name, value in outcome.metrics.items())
        prediction = "" if outcome.prediction is None else f", read as {shortened(outcome.prediction)!r}"
        yield f"    {script.name:<22} reward {outcome.result.reward:g}{own}{prediction}{self._left_out(script.turns[-1])}"
        if self._spec.rollout.agent and script.is_right:
            for branch in outcome.result.rows():
                yield indented(self._screen.segments(branch.segments, self._tokenizer), "      ")

    def _left_out(self, said: str) -> str:
        """What of a text the tokenizer cannot write; empty: nothing."""
        tokens = self._tokenizer.encode(said, add_special_tokens=False)
        if said and not tokens:
            return ", but this tokenizer cannot write it: nothing was said"
        characters = unwritten(self._tokenizer, said, tokens)
        return f", but this tokenizer cannot write {shortened(characters)!r}: it was left out" if characters else ""


def _ended(findings: Findings, name: str, seconds: float) -> int:
    for note in findings.notes:
        print(f"note: {note}")
    sys.stdout.flush()
    for mistake in findings.mistakes:
        print(mistake, file=sys.stderr)
    count = len(findings.mistakes)
    verdict = _verdict(count, len(findings.notes))
    print(f"{name}: {verdict}, after {seconds:.1f} s", file=sys.stderr if count else sys.stdout)
    return 1 if count else 0


def _verdict(mistakes: int, notes: int) -> str:
    if mistakes:
        return "1 mistake" if mistakes == 1 else f"{mistakes} mistakes"
    return f"no mistake, {notes} note{'' if notes == 1 else 's'}" if notes else "no mistake was seen"


def quiet() -> None:
    """Neither libraries nor the driver's parts log: what matters is printed."""
    logging.disable(logging.WARNING)
