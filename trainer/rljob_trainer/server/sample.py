"""The rollout servers of a service: the route that samples (wire/rollout_server.py), and the middleware of those that serve adapters.

Nothing is published to these: they serve the base model that they loaded, and snapshots of clients, which vLLM reads from the volume when a request
names one, next to others and without a pause. vLLM keys what it caches of a prompt by the snapshot's name.

Statuses: 400 invalid request, 401 no token, 409 a higher attempt owns the server (body: `attempt`), 500 the engine failed. When a client
disconnects, its samples are aborted.
"""

import asyncio
import itertools
import secrets
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from rljob_api.rules.lora import CONFIG, WEIGHTS
from rljob_trainer.server.generate import CLIENT_LEFT, NEUTRAL, ContextTooLongError, is_refusal, unless_gone
from rljob_trainer.server.guard import Guard, error
from rljob_trainer.wire.rollout_server import (
    CONTEXT_TOO_LONG,
    DIGEST,
    Adapter,
    LikeliestTokens,
    SampleAnswer,
    SampleRequest,
    ServedSample,
    snapshot_digest,
)
from rljob_trainer.wire.trajectory import Floats
from rljob_trainer.wire.weights import protocol
from rljob_trainer.wire.weights.protocol import AttemptSuperseded


class ServiceFront(Guard):
    """The middleware."""

    async def _admitted(self, request: Request, send: Any) -> None:
        answer = self._refusal(request) or await self._answer(request)
        await answer(request.scope, request.receive, send)

    def _refusal(self, request: Request) -> Response | None:
        """To a request of a lower attempt; None: admitted. A higher attempt becomes the highest."""
        attempt = request.headers.get(protocol.ATTEMPT_HEADER, self._gate.fence.highest)
        try:
            self._gate.fence.admit(int(attempt))
        except AttemptSuperseded as fenced:
            return error(409, str(fenced), attempt=fenced.highest)
        except ValueError:
            return error(400, f"{protocol.ATTEMPT_HEADER}: {attempt!r} is not a number")
        return None

    async def _answer(self, request: Request) -> Response:
        route = request.method, request.url.path
        if route == ("GET", protocol.STATE):
            return JSONResponse({"attempt": self._gate.fence.highest, "policy_step": None, "digest": ""})
        if route == ("GET", protocol.HEALTH):
            return await self._health(request, updating=False)
        if route == ("POST", protocol.SAMPLE):
            return await sample(request)
        return error(404, f"{request.url.path} is not served")


async def sample(request: Request, served: int | None = None) -> Response:
    """Answer a SampleRequest. `served`: step of the policy that this server has; None: it serves adapters."""
    try:
        asked = SampleRequest.read(await request.json())
        if asked.policy_step != served:
            return error(503, f"policy {served} is served here, not {asked.policy_step}")
        answer = await unless_gone(request, _samples(request.app.state.engine_client, asked))
    except ContextTooLongError as problem:
        return JSONResponse({"error": str(problem), "code": CONTEXT_TOO_LONG}, 400)
    except (KeyError, TypeError, ValueError) as problem:
        return error(400, f"{type(problem).__name__}: {problem}")
    except Exception as problem:  # vLLM logs the reason; a dead engine ends the server
        return error(400 if is_refusal(problem) else 500, f"{type(problem).__name__}: {problem}")
    return Response(status_code=CLIENT_LEFT) if answer is None else JSONResponse(answer.body())


async def _samples(engine: Any, asked: SampleRequest) -> SampleAnswer:
    """`engine`: vLLM's AsyncLLM."""
    adapter = await asyncio.to_thread(_adapter, asked.adapter) if asked.adapter else None
    tokens, longest = list(asked.tokens), engine.model_config.max_model_len
    if len(tokens) + asked.max_tokens > longest:  # the engine would silently truncate the sample
        raise ContextTooLongError(f"{len(tokens)} and {asked.max_tokens} more tokens do not fit into {longest}")
    prompt: Any = {"type": "token", "prompt_token_ids": tokens}
    async for output in engine.generate(prompt, _parameters(asked), secrets.token_hex(8), lora_request=adapter):
        final = output
    return await asyncio.to_thread(_answer, asked, final)


def _answer(asked: SampleRequest, final: Any) -> SampleAnswer:
    """Of the engine's last output. With many likeliest tokens it takes seconds."""
    samples = tuple(_sample(output, asked.likeliest) for output in final.outputs)
    return SampleAnswer(samples, *_of_prompt(asked, final.prompt_logprobs))


def _sample(output: Any, likeliest: int) -> ServedSample:
    """`output`: vLLM's, which has at each position the log-probability of its token, and then those of the likeliest ones."""
    log_probs = np.asarray(output.logprobs.logprobs, "<f4").reshape(-1, likeliest + 1)[:, 0]
    named = _likeliest(list(output.logprobs), likeliest) if likeliest else None
    return ServedSample(np.asarray(output.token_ids, "<i4"), log_probs, output.finish_reason, named)


def _of_prompt(asked: SampleRequest, places: Any) -> tuple[Floats | None, LikeliestTokens | None]:
    """What was asked for of the prompt. `places`: vLLM's log-probabilities by token, at each position but the first: of its token, and of the
    likeliest ones."""
    if not places:
        return None, None
    tokens, last = asked.tokens, asked.prompt_log_probs or len(asked.tokens)
    scored = [{}, *list(places)[1:]]
    scored[: len(tokens) - last] = [{}] * (len(tokens) - last)
    log_probs = [place[token].logprob if place else np.nan for token, place in zip(tokens, scored, strict=True)]
    named = _likeliest(scored, asked.likeliest_of_prompt) if asked.likeliest_of_prompt else None
    return np.asarray(log_probs, "<f4") if asked.prompt_log_probs else None, named


def _likeliest(places: Sequence[Mapping[int, Any]], count: int) -> LikeliestTokens:
    """Of each position, whose own token is there, too, whatever its rank."""
    tokens, log_probs = np.zeros((len(places), count), "<i4"), np.full((len(places), count), np.nan, "<f4")
    for i, place in enumerate(places):
        first = sorted(place.items(), key=lambda item: item[1].rank)[:count]
        tokens[i, : len(first)] = [token for token, _ in first]
        log_probs[i, : len(first)] = [drawn.logprob for _, drawn in first]
    return LikeliestTokens(tokens, log_probs)


def _adapter(adapter: Adapter) -> Any:
    """vLLM's LoRARequest. Raises ValueError when there are no adapters in the directory: vLLM would end, which reads them between its steps. And when
    they are not those that were saved."""
    directory = Path(adapter.directory)
    for name in (CONFIG, WEIGHTS, DIGEST):
        if not (directory / name).is_file():
            raise ValueError(f"the snapshot {directory} has no {name}: it was deleted, or is no snapshot for samplers")
    if _digest_of(directory, (directory / WEIGHTS).stat().st_mtime_ns) != (directory / DIGEST).read_text():
        raise ValueError(f"the snapshot {directory} is damaged: {WEIGHTS} is not what was saved. Save it again")
    from vllm.lora.request import LoRARequest  # seconds to import: see generate.sampling_parameters

    return LoRARequest(adapter.name, number_of(adapter.name), adapter.directory)


_numbers = itertools.count(1)


@lru_cache(maxsize=4096)
def number_of(_snapshot: str) -> int:
    """By which vLLM tells a snapshot from others. One process serves an engine, and counts: the engine's workers keep numbers of 32 bits
    (v1/worker/gpu/lora_utils.py, LoraState), in which digests of names would meet. A snapshot that is forgotten gets another number when it comes
    again, and is read again."""
    return next(_numbers)


@lru_cache(maxsize=1024)
def _digest_of(directory: Path, _changed: int) -> str:
    """Computed once for each snapshot, and again when its file has changed."""
    return snapshot_digest(directory)


def _parameters(asked: SampleRequest) -> Any:
    """vLLM's SamplingParams."""
    from vllm.sampling_params import RequestOutputKind, SamplingParams  # seconds to import, as above

    own = {name: getattr(asked, name) for name in ("n", "seed", "max_tokens", "temperature", "top_p", "top_k")}
    ends = {"stop": list(asked.stop), "stop_token_ids": list(asked.stop_tokens), "ignore_eos": not asked.ends}
    scored = asked.prompt_log_probs or asked.likeliest_of_prompt
    prompt = {"prompt_logprobs": asked.likeliest_of_prompt} if scored else {}
    form = {"logprobs": asked.likeliest, "flat_logprobs": True, "output_kind": RequestOutputKind.FINAL_ONLY}
    return SamplingParams(**NEUTRAL | own | ends | prompt | form | {"detokenize": bool(asked.stop)})
