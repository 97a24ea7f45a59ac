"""Reinforcement learning in rehearsal: prompts as the policy would read them, and what rewards and agent make of scripted responses."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from operator import is_
from pathlib import Path

from rljob_api.spec import RLJobSpec
from rljob_api.spec.common import Sampling
from rljob_api.spec.model import RewardSpec
from rljob_trainer.agents.agent import Agent, agent_of
from rljob_trainer.agents.claims import Sandboxes
from rljob_trainer.agents.generated_data import generate
from rljob_trainer.custom_rows.making import RowMaker
from rljob_trainer.data.files import Place, places
from rljob_trainer.data.pictures import image_reader
from rljob_trainer.data.prompts import Prompt, PromptSet, load_prompts
from rljob_trainer.data.tokenizer import Tokenizer, ToolTokenizer, Vocabulary
from rljob_trainer.driver.buffer.assembly import Outcome
from rljob_trainer.driver.buffer.generation import Generator, GroupRequest
from rljob_trainer.driver.unanswered import missing_answers
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.local.rehearsal.policy import LocalParser, Script, ScriptedPolicy, calling, end_of, scripts
from rljob_trainer.rewards.manager import RewardManager, is_scored_by_driver
from rljob_trainer.rewards.request import SampleFailed
from rljob_trainer.rewards.rules import entries_of, validate_row
from rljob_trainer.workers.workers import LoadingLost

SCORED = 16
"""Rows of a file whose responses are scored, at most."""
SEED = 0


@dataclass(frozen=True, slots=True)
class TriedFile:
    """A file's prompts, and those of them that were answered."""

    place: Place
    prompts: PromptSet
    rows: tuple["TriedRow", ...]


@dataclass(frozen=True, slots=True)
class TriedRow:
    """A prompt, and what became of each script."""

    prompt: Prompt
    samples: tuple[tuple[Script, Outcome], ...]


class Rehearsal:
    """The parts of the driver, without rollouts. `most` rows of each file are read; None: all."""

    def __init__(self, spec: RLJobSpec, tokenizer: Tokenizer, scratch: Path, most: int | None, said: Sequence[str]):
        """`said`: the user's own turns in place of answers."""
        self._spec, self._tokenizer, self._scratch, self._most, self._said = spec, tokenizer, scratch, most, said
        self._rewards = RewardManager(spec.rewards, scored=is_within_reach)
        sandboxes = Sandboxes(spec.environments)
        sandboxes.follow(None)  # directories of this machine
        self._agent: Agent | None = agent_of(spec.rollout.agent, sandboxes=sandboxes) if spec.rollout.agent else None
        self._end, self._parser = end_of(spec, tokenizer), LocalParser(spec.model)
        self._calls = ""
        self._answers = False

    @asynccontextmanager
    async def started(self) -> AsyncIterator[list[ConfigurationError]]:
        """The processes of rewards and agent run. What is wrong with them is given: then no prompt is answered."""
        try:
            mistakes = await _mistakes(self._agent.start()) if self._agent else []
            if self._agent and self._agent.tools:
                self._tokenizer = ToolTokenizer(self._tokenizer, self._agent.tools)
                self._calls = calling(self._agent.tools, self._tokenizer, self._spec.data.chat_template)
            mistakes += await self._mistakes_of_rewards()
            self._answers = not mistakes
            yield mistakes
        finally:
            await asyncio.gather(*(part.stop() for part in (self._rewards, self._agent, self._parser) if part))

    async def _mistakes_of_rewards(self) -> list[ConfigurationError]:
        """Of all entries: where one is wrong, each is started alone."""
        if not await _mistakes(self._rewards.start()):
            return []
        alone = [RewardManager(self._spec.rewards, scored=partial(is_, entry)) for entry in within_reach(self._spec)]
        mistakes = [mistake for manager in alone for mistake in await _mistakes(manager.start())]
        await asyncio.gather(*(manager.stop() for manager in alone))
        return mistakes

    def missing_answers(self, file: TriedFile) -> Iterator[ConfigurationError]:
        """That rewards judge by."""
        return missing_answers(self._spec, file.place, file.prompts, self._rewards.needed_answers)

    async def files(self) -> AsyncIterator[TriedFile | ConfigurationError]:
        """Of training, then held-out data, or what is wrong with each. Data that are generated are written, as a job would."""
        try:
            await asyncio.to_thread(generate, self._spec.data)
        except ConfigurationError as error:
            yield error
            return
        for number, (place, sampling, is_held_out) in enumerate(self._places()):
            try:
                prompts = await asyncio.to_thread(self._prompts, place, self._scratch / str(number), is_held_out)
                rows = await self._tried(prompts, sampling)
            except ConfigurationError as error:
                yield error
                continue
            yield TriedFile(place, prompts, rows)

    def _places(self) -> Iterator[tuple[Place, Sampling, bool]]:
        spec = self._spec
        yield from ((place, spec.rollout.sampling, False) for place in places("spec.data.train", spec.data.train))
        yield from ((p, spec.evaluation.sampling, True) for p in places("spec.data.validation", spec.data.validation))
        for i, own in enumerate(spec.evaluation.sets):
            sampling = own.sampling or spec.evaluation.sampling
            yield from ((p, sampling, True) for p in places(f"spec.evaluation.sets[{i}].files", own.files))

    def _prompts(self, place: Place, scratch: Path, is_held_out: bool) -> PromptSet:
        spec = self._spec
        validate = partial(validate_row, spec.rewards, by_driver=is_held_out and spec.evaluation.takes_place)
        vocabulary, images = Vocabulary.of(spec), image_reader(spec)
        made = RowMaker(spec.data, scratch.with_suffix(".custom"), self._most)
        return load_prompts(
            spec.data, made([place]), self._tokenizer, validate, scratch, images, vocabulary, self._most
        )

    async def _tried(self, prompts: PromptSet, sampling: Sampling) -> tuple[TriedRow, ...]:
        """Where the first row takes too long, the others would too."""
        chosen = [prompts[i] for i in _spread(prompts)]
        first = await self._row(chosen[0], chosen, sampling)
        if any(isinstance(o.result, SampleFailed) and o.result.kind == "timeout" for _, o in first.samples):
            return (first,)
        return (first, *await asyncio.gather(*(self._row(prompt, chosen, sampling) for prompt in chosen[1:])))

    async def _row(self, prompt: Prompt, others: Sequence[Prompt], sampling: Sampling) -> TriedRow:
        tried = scripts(prompt, others, self._said, self._calls) if self._answers else []
        outcomes = await asyncio.gather(*(self._sample(prompt, script, sampling) for script in tried))
        return TriedRow(prompt, tuple(zip(tried, outcomes, strict=True)))

    async def _sample(self, prompt: Prompt, script: Script, sampling: Sampling) -> Outcome:
        """As the driver makes one."""
        policy = ScriptedPolicy(script, self._tokenizer, self._end, self._parser.parse)
        generator = Generator(self._spec, self._tokenizer, self._rewards, policy, _nothing, self._agent)
        (outcome,) = await generator.samples(GroupRequest(prompt.index, prompt, 1, sampling, SEED))
        return outcome


def is_within_reach(reward: RewardSpec) -> bool:
    """Without ranks and servers of a job."""
    return is_scored_by_driver(reward) and not (reward.vllm and reward.vllm.pool)


def within_reach(spec: RLJobSpec) -> list[RewardSpec]:
    return [entry for entry in spec.rewards if is_within_reach(entry)]


async def _mistakes(starting: Awaitable[None]) -> list[ConfigurationError]:
    try:
        await starting
    except ConfigurationError as error:
        return [error]
    except LoadingLost as lost:
        return [ConfigurationError(lost.field, lost.target, lost.reason, "give it more memory, or let it load less")]
    return []


def out_of_reach(spec: RLJobSpec, prompt: Prompt) -> list[str]:
    """Fields of the entries that count for a prompt and are not tried."""
    entries = entries_of(spec.rewards, prompt.data_source)
    return [f"spec.rewards[{i}]" for i, entry in entries if not is_within_reach(entry)]


def _spread(prompts: PromptSet) -> list[int]:
    """Places of rows: the first of every data source, and others that are spread evenly."""
    first = {prompts.source(i): i for i in reversed(range(len(prompts)))}
    count = min(SCORED, len(prompts))
    return sorted({*first.values(), *(i * len(prompts) // count for i in range(count))})


def _nothing() -> None: ...
