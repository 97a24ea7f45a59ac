"""Prompts to scored samples: each response is scored as soon as its request is answered."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Protocol

from rljob_api.spec import RLJobSpec
from rljob_api.spec.common import Sampling
from rljob_trainer.agents.agent import Agent
from rljob_trainer.agents.conversations import ResponseParser
from rljob_trainer.agents.recording import AgentFailed, Rollout, measured, single
from rljob_trainer.agents.session import Session
from rljob_trainer.agents.shown_images import ShownImages
from rljob_trainer.data.pictures import image_reader
from rljob_trainer.data.prompts import HeldOutSet, Prompt
from rljob_trainer.data.rows import answer_in
from rljob_trainer.data.tokenizer import Tokenizer, decoded
from rljob_trainer.driver.buffer.assembly import Outcome, penalised
from rljob_trainer.driver.buffer.partial_sample import PartialSample, evaluation_seed, training_seed, turn_seed
from rljob_trainer.driver.slots import WOKEN_AT_ONCE, Home, Priority, PriorityEvent
from rljob_trainer.reporting.timeline import Timeline
from rljob_trainer.rewards.manager import RewardManager, apart
from rljob_trainer.rewards.request import RewardFailed, RewardRequest, SampleFailed
from rljob_trainer.rewards.rules import require_texts
from rljob_trainer.wire.images import Placed
from rljob_trainer.wire.rollout_client import Generation, GenerationRequest
from rljob_trainer.wire.rollout_server import Parsed, ParseRequest
from rljob_trainer.wire.trajectory import Experts, Ints, Segment, Trajectory, prompt

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GroupRequest:
    """All samples of one prompt."""

    group: int
    """What names the group until the step numbers its own."""
    prompt: Prompt
    count: int
    sampling: Sampling
    seed: int
    interruptible: bool = False
    """A weight update interrupts its samples, which continue under the next policy (partial rollouts)."""
    images: tuple[Placed, ...] = ()
    """Of the prompt, once they are read."""

    @property
    def generation(self) -> GenerationRequest:
        """All responses at once."""
        return GenerationRequest(self.prompt.tokens, self.count, self.sampling, self.seed, self.images)


class Responder(Protocol):
    """Who answers for the policy: the pool of rollout servers."""

    async def generate(self, request: GenerationRequest, home: Home | None = None) -> list[Generation]: ...

    async def parse(self, request: ParseRequest) -> Parsed: ...

    async def resumed(self) -> None: ...

    async def interrupt(self) -> None: ...


class Generator:
    """Generates from the pool and has the responses scored. `heartbeat` is called once per scored sample, and per turn of an agent's."""

    def __init__(
        self,
        spec: RLJobSpec,
        tokenizer: Tokenizer,
        rewards: RewardManager,
        pool: Responder,
        heartbeat: Callable[[], None],
        agent: Agent | None = None,
        timeline: Timeline | None = None,
    ):
        """`agent`: makes the samples, where they are more than one response. `timeline` has when rewards are computed."""
        self._spec, self._tokenizer, self._rewards = spec, tokenizer, rewards
        self._pool, self._heartbeat, self._agent = pool, heartbeat, agent
        self._timeline = timeline or Timeline()
        self._parser = ResponseParser.of(spec, pool.parse)
        self._reader = image_reader(spec) if agent else None
        self._may_generate = PriorityEvent()

    def group(
        self, step: int, position: int, prompt: Prompt, samples: Sequence[PartialSample]
    ) -> Coroutine[Any, Any, list[Outcome]]:
        """Generate and score every sample of the prompt at `position` of the data, begun in `step`. With `remax` each also carries the
        reward of the greedy response.

        `samples` hold what has been generated of each, where weight updates may interrupt them. Those restored from a checkpoint are
        continued.
        """
        spec = self._spec
        seed = training_seed(spec.data.seed, step, position)
        request = GroupRequest(position, prompt, spec.train.samples_per_prompt, spec.rollout.sampling, seed)
        if spec.algorithm.advantage == "remax":
            return self._with_baseline(request)
        if not spec.keeps_groups:
            return self.samples(request)
        return self._generated(replace(request, interruptible=True), samples)

    def resume(self) -> None:
        """Let interruptible groups generate."""
        self._may_generate.set()

    async def interrupt(self) -> None:
        """Stop interruptible groups. When this returns, their samples hold all tokens generated so far; complete responses are still scored."""
        self._may_generate.clear()
        await self._pool.interrupt()

    async def evaluate(self, sets: Sequence[HeldOutSet]) -> dict[str, list[list[Outcome]]]:
        """The responses to every prompt, by the names of the sets."""
        begun: dict[str, list[asyncio.Task[list[Outcome]]]] = {s.name: [] for s in sets}
        async with asyncio.TaskGroup() as tasks:
            for s in sets:
                for request in self._held_out(s):
                    begun[s.name].append(tasks.create_task(self.samples(request)))
                    if len(begun[s.name]) % WOKEN_AT_ONCE == 0:
                        await asyncio.sleep(0)  # others are served meanwhile
        outcomes = {name: [task.result() for task in own] for name, own in begun.items()}
        warn_of_failures([o for groups in outcomes.values() for group in groups for o in group])
        return outcomes

    def _held_out(self, held_out: HeldOutSet) -> Iterator[GroupRequest]:
        for p in held_out.prompts:
            seed = evaluation_seed(self._spec.data.seed, held_out.name, p.index)
            yield GroupRequest(p.index, p, held_out.count, held_out.sampling, seed)

    async def samples(self, request: GroupRequest) -> list[Outcome]:
        """All samples of a prompt under one policy, generated and scored."""
        return await self._generated(request, [PartialSample() for _ in range(request.count)])

    async def _generated(self, request: GroupRequest, samples: Sequence[PartialSample]) -> list[Outcome]:
        """It survives interruptions: each incomplete sample continues with a request of its own, from its last token."""
        if self._agent:
            return await self._with_agents(self._agent, request, samples)
        request = await _with_images(request)
        if not any(sample.begun for sample in samples):
            pieces = await self._pieces(request, request.generation, (request.group, 0))
            for sample, piece in zip(samples, pieces, strict=True):
                sample.add(piece)
        return list(await asyncio.gather(*(self._complete(request, i, sample) for i, sample in enumerate(samples))))

    async def _complete(self, request: GroupRequest, index: int, sample: PartialSample) -> Outcome:
        if sample.outcome is None:
            await self._continue(sample, request, request.generation, index)
            context = prompt(request.prompt.tokens, request.images)
            rollout = single(context, sample.response, sample.finish_reason == "length")
            sample.outcome = await self._score(request, index, rollout, sample.routed_experts)
        return sample.outcome

    async def _continue(
        self,
        sample: PartialSample,
        request: GroupRequest,
        begun: GenerationRequest,
        index: int,
        home: Home | None = None,
    ) -> None:
        """Generate the rest of a response, which was begun as one of `begun`."""
        stop, decode = begun.sampling.stop, partial(decoded, self._tokenizer)
        while sample.finish_reason == "abort":
            further, cut = sample.continuation(begun, index), sample.length
            sample.add(*await self._pieces(request, further, (request.group, index), home))
            if stop:  # of an evaluation, or of an agent's turn
                sample.end_at(stop, cut, decode)

    async def _with_agents(
        self, agent: Agent, request: GroupRequest, samples: Sequence[PartialSample]
    ) -> list[Outcome]:
        """Like `_generated`, with the agent's trajectories as samples. `samples` hold only scored ones: one that is not complete lives in the
        agent's process."""
        request = await _with_images(request)
        return list(await asyncio.gather(*(self._with_agent(agent, request, i, s) for i, s in enumerate(samples))))

    async def _with_agent(self, agent: Agent, request: GroupRequest, index: int, sample: PartialSample) -> Outcome:
        shown = ShownImages(self._reader, request.prompt.tokens, request.images)
        generate_turn = partial(self._turn, request, index, Home(), shown)
        if sample.outcome is None:
            template = self._spec.data.chat_template
            session = Session(
                agent.spec,
                request.prompt,
                request.sampling,
                self._tokenizer,
                template,
                generate_turn,
                self._parser,
                shown,
            )
            try:
                rollout = await agent.rollout(session)
                sequences = [shown.with_images(segments) for segments in (rollout.segments, *rollout.branches)]
                seen = replace(rollout, segments=sequences[0], branches=tuple(sequences[1:]))
                sample.outcome = await self._score(request, index, seen)
            except AgentFailed as failure:
                sample.outcome = Outcome(request.group, index, failure)
        return sample.outcome

    async def _turn(
        self,
        request: GroupRequest,
        index: int,
        home: Home,
        shown: ShownImages,
        tokens: Ints,
        sampling: Sampling,
        turn: int,
    ) -> tuple[tuple[Segment, ...], bool]:
        """The policy's response to `tokens` in turn number `turn`, and whether it was cut off at the token limit."""
        seed = turn_seed(request.seed, index, turn)
        generation = GenerationRequest(tokens, 1, sampling, seed, shown.asked(tokens))
        response = PartialSample()
        response.add(*await self._pieces(request, generation, (request.group, index), home))
        await self._continue(response, request, generation, index, home)
        self._heartbeat()
        return response.response, response.finish_reason == "length"

    async def _pieces(
        self, request: GroupRequest, generation: GenerationRequest, priority: Priority, home: Home | None = None
    ) -> list[Generation]:
        """The responses to `generation`, or as much of them as is generated before the next interruption. What is not interruptible, such as an
        evaluation, goes on as soon as that is over, under the same policy."""
        while True:
            await (self._may_generate.wait(priority) if request.interruptible else self._pool.resumed())
            pieces = await self._pool.generate(generation, home)
            if pieces:
                return pieces

    async def _with_baseline(self, request: GroupRequest) -> list[Outcome]:
        """The samples with the reward of the prompt's greedy response as their baseline (ReMax, arXiv 2310.10505, algorithm 1)."""
        greedy = replace(request, count=1, sampling=request.sampling.model_copy(update={"temperature": 0.0}))
        outcomes, (baseline,) = await asyncio.gather(self.samples(request), self.samples(greedy))
        if isinstance(baseline.result, Trajectory):
            return [_against(o, penalised(baseline.result, self._spec).reward) for o in outcomes]
        return [Outcome(o.group, o.sample, baseline.result) for o in outcomes]

    async def _score(
        self, request: GroupRequest, index: int, rollout: Rollout, routed_experts: Experts | None = None
    ) -> Outcome:
        row = request.prompt
        sample = Trajectory(
            segments=rollout.segments,
            prompt_index=row.index,
            group=request.group,
            sample=index,
            finish_reason="length" if rollout.truncated else "stop",
            reward=rollout.reward,
            branches=rollout.branches,
            data_source=row.data_source,
            routed_experts=routed_experts,
        )
        if sample.images:
            require_texts(self._spec.rewards, row.data_source)
        try:
            asked = await apart(self._asked, row, sample, rollout.last_turn)
            with self._timeline.working("rewards", "scoring"):
                reward = await self._rewards.score(asked)
        except RewardFailed as failure:
            return Outcome(request.group, index, failure)
        finally:
            self._heartbeat()
        scored = replace(sample, reward=rollout.reward + reward.score)
        metrics, agent = {**rollout.metrics, **reward.metrics}, measured(scored, rollout) if self._agent else {}
        return Outcome(request.group, index, scored, metrics, reward.prediction, agent)

    def _asked(self, row: Prompt, sample: Trajectory, last_turn: Ints) -> RewardRequest:
        """For a thread: a long response takes a tenth of a second."""
        read = cache(row.row)  # once for all values that come from it
        return RewardRequest(
            row.text,
            decoded(self._tokenizer, last_turn.tolist()),
            row.answer,
            row.data_source,
            tuple(sample.tokens.tolist()),
            prompt_length=sample.prompt_length,
            truncated=sample.finish_reason == "length",
            row=read,
            answer_value=lambda: answer_in(read(), self._spec.data),
        )


async def _with_images(request: GroupRequest) -> GroupRequest:
    """With those that its prompt has."""
    read = request.prompt.images
    return replace(request, images=await asyncio.to_thread(read)) if read else request


def _against(outcome: Outcome, baseline: float) -> Outcome:
    result = outcome.result
    return (
        replace(outcome, result=replace(result, baseline_reward=baseline))
        if isinstance(result, Trajectory)
        else outcome
    )


def warn_of_failures(outcomes: Sequence[Outcome]) -> None:
    failures = [o.result for o in outcomes if isinstance(o.result, SampleFailed)]
    for (what, kind), count in Counter((f.what, f.kind) for f in failures).items():
        log.warning(
            "%d of %d %s failed (%s), their samples are left out; the first: %s",
            count,
            len(outcomes),
            what,
            kind,
            next(f for f in failures if (f.what, f.kind) == (what, kind)),
        )
