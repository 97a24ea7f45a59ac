"""Prompts to scored samples: each response is scored as soon as its request is answered."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from rljob_api.spec import RLJobSpec
from rljob_api.spec.common import Sampling
from rljob_trainer.buffer.assembly import Outcome, penalised
from rljob_trainer.buffer.seeds import continuation_seed, evaluation_seed, training_seed
from rljob_trainer.data.held_out import HeldOutSet
from rljob_trainer.data.prompts import Prompt
from rljob_trainer.data.rows import answer_in
from rljob_trainer.data.tokenizer import Tokenizer
from rljob_trainer.rewards.manager import RewardManager
from rljob_trainer.rewards.request import RewardFailed, RewardRequest
from rljob_trainer.rollout.client import FinishReason, Generation
from rljob_trainer.rollout.pool import RolloutPool
from rljob_trainer.trajectory import Ints, Segment, Trajectory, appended, prompt, sampled

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt's samples."""

    group: int
    """What names the group until the step numbers its own."""
    prompt: Prompt
    count: int
    sampling: Sampling
    seed: int


@dataclass(slots=True)
class Draft:
    """A sample while it is generated in pieces."""

    response: tuple[Segment, ...] = ()
    finish_reason: FinishReason = "abort"
    outcome: Outcome | None = None
    """Once it is scored."""

    @property
    def begun(self) -> bool:
        return bool(self.response) or self.finish_reason != "abort" or self.outcome is not None

    @property
    def length(self) -> int:
        """Tokens so far."""
        return sum(len(s.tokens) for s in self.response)

    def add(self, piece: Generation) -> None:
        self.response = appended(self.response, _segment(piece))
        self.finish_reason = piece.finish_reason


class Generator:
    """Generates from the pool and has the responses scored. `beat` is called once per scored sample."""

    def __init__(
        self,
        spec: RLJobSpec,
        job_uid: str,
        tokenizer: Tokenizer,
        rewards: RewardManager,
        pool: RolloutPool,
        beat: Callable[[], None],
    ):
        self._spec, self._job_uid, self._tokenizer, self._rewards, self._pool, self._beat = (
            spec,
            job_uid,
            tokenizer,
            rewards,
            pool,
            beat,
        )
        self._resumed = asyncio.Event()

    def group(
        self, step: int, position: int, prompt: Prompt, drafts: Sequence[Draft]
    ) -> Coroutine[Any, Any, list[Outcome]]:
        """Every sample of the prompt at `position` of the data, begun in `step`. With `remax` each has the reward of the greedy response.

        Where samples are generated in pieces, `drafts` hold what there is of each at any time, and they may begin with something.
        """
        spec = self._spec
        seed = training_seed(self._job_uid, spec.data.seed, step, position)
        request = Request(position, prompt, spec.train.samples_per_prompt, spec.rollout.sampling, seed)
        if spec.algorithm.advantage == "remax":
            return self._with_baseline(request)
        return self._in_pieces(request, drafts) if spec.keeps_groups else self._request(request)

    def resume(self) -> None:
        """Groups that are generated in pieces may continue."""
        self._resumed.set()

    async def interrupt(self) -> None:
        """They may not any more; what they have generated so far is theirs when this returns. Complete responses are scored meanwhile."""
        self._resumed.clear()
        await self._pool.interrupt()

    async def evaluate(self, sets: Sequence[HeldOutSet]) -> dict[str, list[list[Outcome]]]:
        """The responses to every prompt, by the names of the sets."""
        async with asyncio.TaskGroup() as tasks:
            begun = {s.name: [tasks.create_task(self._request(r)) for r in self._held_out(s)] for s in sets}
        found = {name: [task.result() for task in own] for name, own in begun.items()}
        warn_of_failures([o for groups in found.values() for group in groups for o in group])
        return found

    def _held_out(self, held_out: HeldOutSet) -> Iterator[Request]:
        for p in held_out.prompts:
            seed = evaluation_seed(self._job_uid, self._spec.data.seed, held_out.name, p.index)
            yield Request(p.index, p, held_out.count, held_out.sampling, seed)

    async def _request(self, request: Request) -> list[Outcome]:
        generations = await self._pool.generate(request.prompt.tokens, request.count, request.sampling, request.seed)
        scored = (
            self._score(request, i, appended((), _segment(g)), g.finish_reason) for i, g in enumerate(generations)
        )
        return list(await asyncio.gather(*scored))

    async def _in_pieces(self, request: Request, drafts: Sequence[Draft]) -> list[Outcome]:
        """As `_request`, whatever interrupts it: each sample that is not complete continues on its own, behind the tokens that it has."""
        if not any(draft.begun for draft in drafts):
            pieces = await self._pieces(request.prompt.tokens, request.count, request.sampling, request.seed)
            for draft, piece in zip(drafts, pieces, strict=True):
                draft.add(piece)
        return list(await asyncio.gather(*(self._complete(request, i, draft) for i, draft in enumerate(drafts))))

    async def _complete(self, request: Request, index: int, draft: Draft) -> Outcome:
        while draft.finish_reason == "abort":
            rest = request.sampling.model_copy(update={"max_tokens": request.sampling.max_tokens - draft.length})
            seed = continuation_seed(request.seed, index, draft.length)
            so_far = np.concatenate((request.prompt.tokens, *(s.tokens for s in draft.response)))
            draft.add(*await self._pieces(so_far, 1, rest, seed))
        if draft.outcome is None:
            draft.outcome = await self._score(request, index, draft.response, draft.finish_reason)
        return draft.outcome

    async def _pieces(self, tokens: Sequence[int] | Ints, n: int, sampling: Sampling, seed: int) -> list[Generation]:
        """What follows `tokens`, as far as it is drawn before an interruption."""
        while True:
            while not self._resumed.is_set():  # it may be closed again before a waiting task has run
                await self._resumed.wait()
            if pieces := await self._pool.generate(tokens, n, sampling, seed):
                return pieces

    async def _with_baseline(self, request: Request) -> list[Outcome]:
        """The samples, scored against the prompt's greedy response (ReMax, arXiv 2310.10505, algorithm 1)."""
        greedy = replace(request, count=1, sampling=request.sampling.model_copy(update={"temperature": 0.0}))
        outcomes, (baseline,) = await asyncio.gather(self._request(request), self._request(greedy))
        if isinstance(baseline.result, Trajectory):
            return [_against(o, penalised(baseline.result, self._spec).reward) for o in outcomes]
        return [Outcome(o.group, o.sample, baseline.result) for o in outcomes]

    async def _score(
        self, request: Request, index: int, response: tuple[Segment, ...], finish_reason: FinishReason
    ) -> Outcome:
        assert finish_reason != "abort", "only complete responses are scored"
        row = request.prompt
        tokens = [t for s in response for t in s.tokens.tolist()]
        text = self._tokenizer.decode(tokens, skip_special_tokens=True)
        read = cache(row.row)  # once for all values that come from it
        asked = RewardRequest(
            row.text,
            text,
            row.answer,
            row.data_source,
            (*row.tokens, *tokens),
            prompt_length=len(row.tokens),
            truncated=finish_reason == "length",
            row=read,
            answer_value=lambda: answer_in(read(), self._spec.data),
        )
        try:
            reward = await self._rewards.score(asked)
        except RewardFailed as failure:
            return Outcome(request.group, index, failure)
        finally:
            self._beat()
        sample = Trajectory(
            segments=(prompt(row.tokens), *response),
            prompt_index=row.index,
            group=request.group,
            sample=index,
            finish_reason=finish_reason,
            reward=reward.score,
            data_source=row.data_source,
        )
        return Outcome(request.group, index, sample, reward.metrics, reward.prediction)


def _segment(piece: Generation) -> Segment:
    return sampled(piece.tokens, piece.log_probs, piece.policy_step)


def _against(outcome: Outcome, baseline: float) -> Outcome:
    result = outcome.result
    return (
        replace(outcome, result=replace(result, baseline_reward=baseline))
        if isinstance(result, Trajectory)
        else outcome
    )


def warn_of_failures(outcomes: Sequence[Outcome]) -> None:
    failures = [o.result for o in outcomes if isinstance(o.result, RewardFailed)]
    for kind, count in Counter(f.kind for f in failures).items():
        log.warning(
            "%d of %d rewards failed (%s), their samples are left out; the first: %s",
            count,
            len(outcomes),
            kind,
            next(f for f in failures if f.kind == kind),
        )
