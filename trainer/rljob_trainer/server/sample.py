"""The rollout servers of a service: their middleware, and the route that samples (wire/rollout_server.py).

Nothing is published to them: they serve the base model that they loaded, and snapshots of clients, which vLLM reads from the volume when a request
names one, next to others and without a pause. vLLM keys what it caches of a prompt by the snapshot's name.

Statuses: 400 invalid request, 401 no token, 409 a higher attempt owns the server (body: `attempt`), 500 the engine failed. When a client
disconnects, its samples are aborted.
"""

import hashlib
import secrets
from pathlib import Path
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from rljob_api.rules.lora import CONFIG, WEIGHTS
from rljob_trainer.server.generate import CLIENT_LEFT, NEUTRAL, ContextTooLongError, is_refusal, unless_gone
from rljob_trainer.server.guard import Guard, error
from rljob_trainer.wire.rollout_server import CONTEXT_TOO_LONG, Adapter, SampleAnswer, SampleRequest, ServedSample
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


async def sample(request: Request) -> Response:
    """Answer a SampleRequest."""
    try:
        asked = SampleRequest.read(await request.json())
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
    adapter = _adapter(asked.adapter) if asked.adapter else None
    tokens, longest = list(asked.tokens), engine.model_config.max_model_len
    if len(tokens) + asked.max_tokens > longest:  # the engine would silently truncate the sample
        raise ContextTooLongError(f"{len(tokens)} and {asked.max_tokens} more tokens do not fit into {longest}")
    prompt: Any = {"type": "token", "prompt_token_ids": tokens}
    async for output in engine.generate(prompt, _parameters(asked), secrets.token_hex(8), lora_request=adapter):
        final = output
    samples = tuple(
        ServedSample(np.asarray(o.token_ids, "<i4"), np.asarray(o.logprobs.logprobs, "<f4"), o.finish_reason)
        for o in final.outputs
    )
    last = asked.prompt_log_probs
    return SampleAnswer(samples, _of_prompt(tokens, final.prompt_logprobs, last) if last else None)


def _of_prompt(tokens: list[int], places: Any, last: int) -> Floats:
    """The log-probabilities of the prompt's last tokens; NaN for the others. vLLM has those of the token, and of the most probable one, by token."""
    values = [float("nan"), *(place[token].logprob for token, place in zip(tokens[1:], list(places)[1:], strict=True))]
    values[: max(len(tokens) - last, 0)] = [float("nan")] * max(len(tokens) - last, 0)
    return np.asarray(values, "<f4")


def _adapter(adapter: Adapter) -> Any:
    """vLLM's LoRARequest. Raises ValueError when there are no adapters in the directory: vLLM would end, which reads them between its steps."""
    for name in (CONFIG, WEIGHTS):
        if not (Path(adapter.directory) / name).is_file():
            raise ValueError(
                f"the snapshot {adapter.directory} has no {name}: it was deleted, or is no snapshot for samplers"
            )
    from vllm.lora.request import LoRARequest  # seconds to import: see generate.sampling_parameters

    number = int.from_bytes(hashlib.sha256(adapter.name.encode()).digest()[:6], "big") + 1
    return LoRARequest(adapter.name, number, adapter.directory)


def _parameters(asked: SampleRequest) -> Any:
    """vLLM's SamplingParams."""
    from vllm.sampling_params import RequestOutputKind, SamplingParams  # seconds to import, as above

    own = {name: getattr(asked, name) for name in ("n", "seed", "max_tokens", "temperature", "top_p", "top_k")}
    ends = {"stop": list(asked.stop), "stop_token_ids": list(asked.stop_tokens), "ignore_eos": not asked.ends}
    prompt = {"prompt_logprobs": 0} if asked.prompt_log_probs else {}
    form = {"logprobs": 0, "flat_logprobs": True, "output_kind": RequestOutputKind.FINAL_ONLY}
    return SamplingParams(**NEUTRAL | own | ends | prompt | form | {"detokenize": bool(asked.stop)})
