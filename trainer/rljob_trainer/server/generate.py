"""The generate route: token ids in, token ids and log-probabilities out (wire/rollout_server.py), straight from vLLM's engine.

vLLM's own routes detokenize every token, make an object of every log-probability, and build OpenAI's response models. Request: `prompt` (token
ids, packed), `n`, `seed` (of response 0; response i gets seed + i), `temperature`, `max_tokens`; optionally `stop` (texts that end a response and
are part of it), `top_p`, `top_k` and `min_p`, for evaluations, since they change the distribution; and `images` in the prompt. Statuses: 400
invalid request (with the `code` CONTEXT_TOO_LONG where that is why), 500 the engine failed. When a client disconnects, its generation is aborted.

A request may continue under another policy (`rollout.interrupt: keep`). vLLM records the version of the weights of every token, which is the step of
the policy. What it caches of a prompt is only for requests that came under the same policy: their cache salt is the policy's digest.
"""

import asyncio
import base64
import math
import secrets
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any

import numpy as np
import torch
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from rljob_trainer.wire.completions import MEDIA_TYPE, AnswerBody, Completion, encode
from rljob_trainer.wire.rollout_server import CONTEXT_TOO_LONG, unpack_tokens
from rljob_trainer.wire.trajectory import Experts
from rljob_trainer.wire.weights.protocol import ADAPTERS, SERVED_MODEL, PolicyVersion

NEUTRAL = {
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
}
"""Parameters that would change the distribution in addition to temperature, disabled explicitly."""
CLIENT_LEFT = 499
"""Status for the access log when the client has disconnected."""


def multimodal_input(tokens: list[int], images: Sequence[dict[str, Any]], request: str, salt: str) -> Any:
    """vLLM's engine input for models like Qwen2-VL, as its own processor would make it (vllm/model_executor/models/qwen2_vl.py,
    `_create_qwen2vl_field_factory`).

    Images get names unique to the `request`, so that vLLM never reuses embeddings that an earlier policy computed. Raises KeyError, ValueError.
    """
    # imported here, because it takes seconds and the front alone does not need it
    from vllm.inputs.engine import mm_input
    from vllm.multimodal.inputs import MultiModalFieldConfig, MultiModalKwargsItems, PlaceholderRange

    grids = torch.tensor([(1, *image["grid"]) for image in images])
    patches = grids.prod(-1)
    lengths = [math.prod(image["grid"]) // image["merge"] ** 2 for image in images]
    given = {"pixel_values": torch.cat([_pixels(image) for image in images]), "image_grid_thw": grids}
    fields = {
        "pixel_values": MultiModalFieldConfig.flat_from_sizes("image", patches),
        "image_grid_thw": MultiModalFieldConfig.batched("image", keep_on_cpu=True),
    }
    places = [PlaceholderRange(image["place"], n) for image, n in zip(images, lengths, strict=True)]
    names = [f"{request}-{i}" for i in range(len(images))]
    items: Any = MultiModalKwargsItems.from_hf_inputs(given, fields)
    return mm_input(tokens, items, {"image": names}, {"image": places}, cache_salt=salt)


def _pixels(image: dict[str, Any]) -> Any:
    """[patches, values of a patch]"""
    flat = np.frombuffer(base64.b64decode(image["pixels"], validate=True), "<f4")
    return torch.from_numpy(flat.reshape(image["grid"][0] * image["grid"][1], -1).copy())


class ContextTooLongError(ValueError):
    """Prompt and response do not fit into the model's context."""


async def generate(policy: PolicyVersion, scope: Scope, receive: Receive, send: Send) -> None:
    """An ASGI application, given the policy that is served."""
    request = Request(scope, receive)
    await (await _answer(policy, request))(scope, receive, send)


async def _answer(policy: PolicyVersion, request: Request) -> Response:
    try:
        body = await request.json()
        completions = await unless_gone(request, _generate(request.app.state.engine_client, policy, body))
    except ContextTooLongError as error:
        return JSONResponse({"error": str(error), "code": CONTEXT_TOO_LONG}, 400)
    except (KeyError, TypeError, ValueError) as error:
        return JSONResponse({"error": f"{type(error).__name__}: {error}"}, 400)
    except Exception as error:  # vLLM logs the reason; a dead engine ends the server
        return JSONResponse({"error": f"{type(error).__name__}: {error}"}, 400 if is_refusal(error) else 500)
    return Response(status_code=CLIENT_LEFT) if completions is None else _streamed(encode(completions))


def _streamed(answer: AnswerBody) -> Response:
    """Others are served between two pieces."""

    async def pieces() -> AsyncIterator[bytes]:
        for piece in answer.pieces:
            yield piece

    return StreamingResponse(pieces(), headers={"content-length": str(answer.size)}, media_type=MEDIA_TYPE)


def is_refusal(error: Exception) -> bool:
    """Whether vLLM says that the request is wrong."""
    from vllm.exceptions import VLLMClientError  # vLLM is there, as it has raised something: see sampling_parameters

    return isinstance(error, VLLMClientError)


async def _generate(engine: Any, policy: PolicyVersion, body: dict[str, Any]) -> list[Completion]:
    """The `n` responses by index. `engine`: vLLM's AsyncLLM; `policy`: the one that is served."""
    tokens, longest = unpack_tokens(body["prompt"]), engine.model_config.max_model_len
    if len(tokens) + body["max_tokens"] > longest:  # the engine would silently truncate the response
        rule = f"{len(tokens)} and {body['max_tokens']} more tokens do not fit into max-model-len {longest}"
        raise ContextTooLongError(rule)
    name = secrets.token_hex(8)
    prompt: Any = {"type": "token", "prompt_token_ids": tokens, "cache_salt": policy.digest}
    images = body.get("images")
    if images:
        prompt = multimodal_input(tokens, images, name, policy.digest)
    async for output in engine.generate(prompt, sampling_parameters(body), name, lora_request=adapters_of(engine)):
        final = output
    return [
        Completion(
            o.token_ids,
            o.logprobs.logprobs,
            o.finish_reason,
            routed_experts(o, len(tokens)),
            later(o, policy),
            guesses(o),
        )
        for o in final.outputs
    ]


def later(output: Any, policy: PolicyVersion) -> list[tuple[int, int]]:
    """See Completion.later. `policy`: the one that was served when the request came."""
    spans = [(span.start, int(span.version)) for span in output.weight_versions or ()]
    return spans[1:] if spans and spans[0][1] == policy.step else spans


def guesses(output: Any) -> tuple[int, int]:
    """See Completion.guesses."""
    metrics = output.spec_decode_metrics
    if metrics is None:
        return 0, 0
    return sum(metrics.histogram), sum(right * passes for right, passes in enumerate(metrics.histogram))


def cache_tokens(engine: Any) -> int:
    """Tokens whose keys and values fit into the caches of all data-parallel copies; 0: the engine does not say."""
    config = engine.vllm_config
    return (config.cache_config.kv_cache_size_tokens or 0) * config.parallel_config.data_parallel_size


def adapters_of(engine: Any) -> Any:
    """vLLM's LoRARequest for the policy's adapters, on servers that get only these; else None."""
    if not engine.vllm_config.lora_config:
        return None
    from vllm.lora.request import LoRARequest  # seconds to import: see sampling_parameters

    return LoRARequest(SERVED_MODEL, ADAPTERS, "in memory")


def routed_experts(output: Any, prompt_length: int) -> Experts | None:
    """The routed experts in vLLM's output; None if the output is incomplete or the server does not return them. Raises ValueError when the kernels
    choose experts without reporting them."""
    experts = output.routed_experts
    if experts is None or output.finish_reason == "abort":
        return None
    if not experts.any() or len(experts) != prompt_length + len(output.token_ids) - 1:
        rule = "this server does not return the experts that its kernels choose"
        raise ValueError(f"{rule}: set spec.algorithm.rolloutCorrection.routerReplay to trainer or none")
    return np.asarray(experts, np.uint8) if experts.dtype == np.uint8 else np.asarray(experts, np.int16)


def sampling_parameters(body: dict[str, Any]) -> Any:
    """vLLM's SamplingParams for a request. Raises KeyError, TypeError or ValueError."""
    # imported here, because it takes seconds and the front alone does not need it
    from vllm.sampling_params import RequestOutputKind, SamplingParams

    own = {name: body[name] for name in ("n", "seed", "temperature", "max_tokens")}
    further = {name: body[name] for name in ("stop", "top_p", "top_k", "min_p") if name in body}
    form = {"logprobs": 0, "flat_logprobs": True, "output_kind": RequestOutputKind.FINAL_ONLY}
    text = {"detokenize": bool(further.get("stop"))}  # stop texts can be found in text only
    return SamplingParams(**NEUTRAL | own | further | form | text)


async def unless_gone[T](request: Request, work: Coroutine[Any, Any, T]) -> T | None:
    """The result of `work`, or None when the client disconnects first; `work` is cancelled then."""
    task, gone = asyncio.create_task(work), asyncio.create_task(_gone(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _gone(request: Request) -> None:
    """Returns when the client has disconnected. The body has been read already."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
