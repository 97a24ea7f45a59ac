"""Prompts to scored samples: all requests go to the pool at once, each response is scored as soon as it is there."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rljob_api.spec import RLJobSpec
from rljob_api.spec.common import Sampling
from rljob_trainer.batch import Sample
from rljob_trainer.data.prompts import Prompt
from rljob_trainer.data.tokenizer import Tokenizer
from rljob_trainer.driver.assembly import Outcome, penalised
from rljob_trainer.driver.seeds import evaluation_seed, training_seed
from rljob_trainer.reward.case import Case, RewardFailed
from rljob_trainer.reward.judge import Judge
from rljob_trainer.rollout.client import Generation
from rljob_trainer.rollout.pool import Pool

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt's samples."""

    group: int
    prompt: Prompt
    count: int
    sampling: Sampling
    seed: int


class Generator:
    """Generates from the pool and has the judge score. `beat` is called per scored sample."""

    def __init__(
        self, spec: RLJobSpec, job_uid: str, tokenizer: Tokenizer, judge: Judge, pool: Pool, beat: Callable[[], None]
    ):
        self._spec, self._job_uid, self._tokenizer, self._judge, self._pool, self._beat = (
            spec,
            job_uid,
            tokenizer,
            judge,
            pool,
            beat,
        )

    async def train(self, step: int, prompts: Sequence[Prompt], first: int) -> list[Outcome]:
        """Every sample of `prompts`, which are the step's from position `first` on. With `remax` each has its greedy response's reward."""
        spec = self._spec
        requests = [
            Request(
                g,
                p,
                spec.train.samples_per_prompt,
                spec.rollout.sampling,
                training_seed(self._job_uid, spec.data.seed, step, p.index, g),
            )
            for g, p in enumerate(prompts, first)
        ]
        return await self._all(requests, self._with_baseline if spec.algorithm.advantage == "remax" else self._request)

    async def evaluate(self, prompts: Sequence[Prompt]) -> list[Outcome]:
        """One response per prompt."""
        spec = self._spec
        requests = [
            Request(g, p, 1, spec.evaluation.sampling, evaluation_seed(self._job_uid, spec.data.seed, p.index))
            for g, p in enumerate(prompts)
        ]
        return await self._all(requests, self._request)

    async def _all(
        self, requests: Sequence[Request], work: Callable[[Request], Coroutine[Any, Any, list[Outcome]]]
    ) -> list[Outcome]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work(r)) for r in requests]
        outcomes = [outcome for task in tasks for outcome in task.result()]
        _warn_of_failures(outcomes)
        return outcomes

    async def _request(self, request: Request) -> list[Outcome]:
        generations = await self._pool.generate(request.prompt.tokens, request.count, request.sampling, request.seed)
        scored = (self._score(request, i, g) for i, g in enumerate(generations))
        return list(await asyncio.gather(*scored))

    async def _with_baseline(self, request: Request) -> list[Outcome]:
        """The samples, judged against the prompt's greedy response (ReMax, arXiv 2310.10505, algorithm 1)."""
        greedy = replace(request, count=1, sampling=request.sampling.model_copy(update={"temperature": 0.0}))
        outcomes, (baseline,) = await asyncio.gather(self._request(request), self._request(greedy))
        if isinstance(baseline.result, Sample):
            return [_against(o, penalised(baseline.result, self._spec).reward) for o in outcomes]
        return [Outcome(o.group, o.sample, baseline.result) for o in outcomes]

    async def _score(self, request: Request, index: int, generation: Generation) -> Outcome:
        prompt = request.prompt
        assert len(generation.tokens) == len(generation.log_probs), "every token has its own log-probability"
        response = self._tokenizer.decode(generation.tokens, skip_special_tokens=True)
        try:
            reward = await self._judge.score(Case(prompt.text, response, prompt.answer, prompt.data_source))
        except RewardFailed as failure:
            return Outcome(request.group, index, failure)
        finally:
            self._beat()
        sample = Sample(
            prompt_index=prompt.index,
            group=request.group,
            sample=index,
            prompt_tokens=prompt.tokens,
            response_tokens=tuple(generation.tokens),
            log_probs=tuple(generation.log_probs),
            policy_step=generation.policy_step,
            finish_reason=generation.finish_reason,
            reward=reward,
            data_source=prompt.data_source,
        )
        return Outcome(request.group, index, sample)


def _against(outcome: Outcome, baseline: float) -> Outcome:
    result = outcome.result
    return replace(outcome, result=replace(result, baseline_reward=baseline)) if isinstance(result, Sample) else outcome


def _warn_of_failures(outcomes: Sequence[Outcome]) -> None:
    failures = [o.result for o in outcomes if isinstance(o.result, RewardFailed)]
    for kind, count in Counter(f.kind for f in failures).items():
        log.warning(
            "%d of %d rewards failed (%s), their samples are left out; the first: %s",
            count,
            len(outcomes),
            kind,
            next(f for f in failures if f.kind == kind),
        )
