"""The contents of the rollout buffer in a checkpoint: batches that wait to be trained, and groups in generation.

step-N.safetensors   a batch (batch_files.py)
groups.safetensors   the samples of the groups as trajectories, in the same format; of incomplete ones, what has been generated
buffer.json          data cursors of the batches; groups and their samples; the settings that all of it was generated with

They are written in the background, while the next step trains.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rljob_api.spec import RLJobSpec
from rljob_trainer.agents.recording import AgentFailed
from rljob_trainer.checkpoint.files import write_json
from rljob_trainer.checkpoint.manifest import Files, fingerprints
from rljob_trainer.data.order import Cursor
from rljob_trainer.driver.buffer import batch_files
from rljob_trainer.driver.buffer.assembly import Outcome
from rljob_trainer.driver.buffer.groups import PromptGroup
from rljob_trainer.driver.buffer.partial_sample import PartialSample
from rljob_trainer.driver.buffer.sources import Ready
from rljob_trainer.driver.done import when_done
from rljob_trainer.rewards.request import RewardFailed, SampleFailed
from rljob_trainer.wire.batch import Batch
from rljob_trainer.wire.trajectory import Trajectory, of_rows

FAILURES: dict[str, type[SampleFailed]] = {kind.__name__: kind for kind in (RewardFailed, AgentFailed)}

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BufferContents:
    """Batches and groups in a rollout buffer at one moment."""

    batches: Sequence[Ready] = ()
    """Those of the steps after the last trained one, in order."""
    groups: Sequence[PromptGroup] = ()


def made_with(spec: RLJobSpec) -> dict[str, Any]:
    """The settings that responses and rewards depend on, by field. When one has changed, saved contents are generated anew."""
    train, algorithm = spec.train, spec.algorithm
    return {
        "train.promptsPerStep": train.prompts_per_step,
        "train.samplesPerPrompt": train.samples_per_prompt,
        "rollout.sampling": spec.rollout.sampling.model_dump(mode="json"),
        "algorithm.rolloutCorrection.routerReplay": algorithm.rollout_correction.router_replay == "rollout",
        "rollout.agent": spec.rollout.agent and spec.rollout.agent.model_dump(mode="json"),
        "rewards": [reward.model_dump(mode="json") for reward in spec.rewards],
        "algorithm.advantage": algorithm.advantage,
        "algorithm.overlong": algorithm.overlong.model_dump(mode="json"),
        "algorithm.dynamicSampling": algorithm.dynamic_sampling is not None,
        "algorithm.difficulty": algorithm.difficulty and algorithm.difficulty.model_dump(mode="json"),
    }


def write(directory: Path, contents: BufferContents, spec: RLJobSpec) -> None:
    """Write the contents into `directory`, a new one; an empty buffer makes none."""
    if not (contents.batches or contents.groups):
        return
    directory.mkdir()
    for ready in contents.batches:
        batch_files.write(_batch_file(directory, ready.batch.step), ready.batch)
    trajectories = [row for group in contents.groups for sample in group.samples for row in _trajectory(sample).rows()]
    batch_files.write(_groups_file(directory), Batch.of(0, trajectories, {}))
    described = {
        "madeWith": made_with(spec),
        "batches": [[r.batch.step, r.cursor.consumed, list(r.cursor.pending)] for r in contents.batches],
        "groups": [[g.position, g.step, g.policy, [_described(s) for s in g.samples]] for g in contents.groups],
    }
    write_json(directory / "buffer.json", described)


def write_hashed(directory: Path, contents: BufferContents, spec: RLJobSpec) -> Files:
    """`write`, and what a manifest says of the files, by their paths below the checkpoint's directory."""
    write(directory, contents, spec)
    files = fingerprints(directory) if directory.is_dir() else {}
    return {f"{directory.name}/{name}": file for name, file in files.items()}


def read(directory: Path, spec: RLJobSpec, step: int) -> BufferContents:
    """The saved contents that can still be used after `step`; empty without a directory. Everything else is generated anew."""
    if not directory.is_dir():
        return BufferContents()
    described = json.loads((directory / "buffer.json").read_text())
    changed = [name for name, value in made_with(spec).items() if described["madeWith"].get(name) != value]
    if changed:
        log.warning("spec.%s differs from the checkpoint's: what was generated ahead is left out", changed[0])
        return BufferContents()
    trajectories = of_rows(batch_files.read(_groups_file(directory)).samples)
    contents = BufferContents(
        [
            Ready(batch_files.read(_batch_file(directory, number)), Cursor(consumed, tuple(pending)))
            for number, consumed, pending in described["batches"]
        ],
        list(_groups(described["groups"], iter(trajectories))),
    )
    return usable(contents, spec, step)


def usable(contents: BufferContents, spec: RLJobSpec, step: int) -> BufferContents:
    """The contents without what would be too old when it is trained, or belongs to steps that will not come."""
    batches: list[Ready] = []
    for ready in contents.batches:
        made = step + len(batches)
        if ready.batch.step != made + 1 or made >= spec.last_step or _oldest(ready.batch) < made - spec.max_age:
            break
        batches.append(ready)
    groups: list[PromptGroup] = []
    for group in sorted(contents.groups, key=lambda g: (g.policy, g.position)) if spec.keeps_groups else ():
        made = step + len(batches) + len(groups) // spec.train.prompts_per_step
        if group.policy + spec.max_age >= made:
            groups.append(group)
    return BufferContents(batches, groups)


def _oldest(batch: Batch) -> int:
    """Step of the oldest policy that sampled a token of the batch."""
    steps = [segment.policy_step for sample in batch.samples for segment in sample.sampled_segments]
    return min(steps, default=batch.step - 1)


def _batch_file(directory: Path, step: int) -> Path:
    return directory / f"step-{step}.safetensors"


def _groups_file(directory: Path) -> Path:
    return directory / "groups.safetensors"


def _trajectory(sample: PartialSample) -> Trajectory:
    """The scored trajectory, or else the response as far as it has been generated."""
    if sample.outcome and isinstance(sample.outcome.result, Trajectory):
        return sample.outcome.result
    return Trajectory(
        sample.response,
        0,
        0,
        0,
        finish_reason="stop",
        reward=0.0,
        data_source="",
        routed_experts=sample.routed_experts,
    )


def _described(sample: PartialSample) -> dict[str, Any]:
    """All of a sample that its trajectory does not hold."""
    if sample.outcome is None:
        return {"finishReason": sample.finish_reason}
    outcome = sample.outcome
    described: dict[str, Any] = {
        "metrics": dict(outcome.metrics),
        "prediction": outcome.prediction,
        "agent": dict(outcome.agent),
    }
    result = outcome.result
    if isinstance(result, SampleFailed):
        described["failure"] = [type(result).__name__, result.kind, result.field, result.target, result.reason]
    return described


def _groups(described: Sequence[Any], trajectories: Iterator[Trajectory]) -> Iterator[PromptGroup]:
    for position, step, policy, samples in described:
        restored = [_sample(sample, next(trajectories), position, index) for index, sample in enumerate(samples)]
        yield PromptGroup(position, step, policy, tuple(restored))


def _sample(described: Mapping[str, Any], trajectory: Trajectory, position: int, index: int) -> PartialSample:
    if "finishReason" in described:
        return PartialSample(trajectory.segments, described["finishReason"], routed_experts=trajectory.routed_experts)
    further = {name: described[name] for name in ("metrics", "prediction", "agent")}
    result: Trajectory | SampleFailed = replace(trajectory, group=position)
    if "failure" in described:
        kind, *of = described["failure"]
        result = FAILURES[kind](*of)
    return PartialSample(outcome=Outcome(position, index, result, **further))


class BufferSave:
    """The last save of the rollout buffer. `changed` is called when `files` has an answer."""

    def __init__(self, spec: RLJobSpec, changed: Callable[[], None]):
        self._spec, self._changed = spec, changed
        self._writing: asyncio.Task[Files] | None = None

    def begin(self, directory: Path, contents: BufferContents) -> None:
        self._writing = asyncio.create_task(asyncio.to_thread(write_hashed, directory, contents, self._spec))
        when_done(self._writing, self._changed)

    def files(self) -> dict[str, Any]:
        """{"files": what was written}, as `DriverCalls.buffer_saved` answers; {} while it is written. Raises OSError when it could not be."""
        if self._writing is None:
            return {"files": {}}
        return {"files": self._writing.result()} if self._writing.done() else {}
