"""Results in the clients' words."""

from typing import Any

import numpy as np
from aiohttp import web

from rljob_trainer.gateway.wire import passes
from rljob_trainer.gateway.wire.messages import LENGTH, MESSAGES, STOP
from rljob_trainer.wire.rollout_server import SampleAnswer
from rljob_trainer.wire.service import Failure, decode_result

PROTOBUF = "application/x-protobuf"


def of_request(kind: str, body: bytes, names: dict[str, str]) -> web.Response:
    """The result of a model's request. `kind`: of its work. `names`: of what it has made, for JSON."""
    result = decode_result(body)
    if isinstance(result, Failure):
        return failed(result)
    if kind == "ForwardBackward":
        return web.Response(body=passes.encode(result), content_type=PROTOBUF)
    metrics: dict[str, Any] = {"metrics": dict(result.metrics)} if kind == "OptimStep" else {}
    return web.json_response(metrics | names)


def of_samples(answer: SampleAnswer) -> web.Response:
    response = MESSAGES["SampleResponse"]()
    for sample in answer.samples:
        sequence = response.sequences.add(stop_reason=STOP if sample.finish_reason == "stop" else LENGTH)
        sequence.tokens = np.asarray(sample.tokens, "<i4").tobytes()
        sequence.logprobs = np.asarray(sample.log_probs, "<f4").tobytes()
    if answer.prompt is not None:
        response.prompt_logprobs = np.asarray(answer.prompt, "<f4").tobytes()
    return web.Response(body=response.SerializeToString(), content_type=PROTOBUF)


def failed(why: Failure) -> web.Response:
    """A future that has failed; the client raises it from this future alone."""
    return web.json_response({"error": why.message, "category": why.category})


def refused(status: int, why: str) -> web.Response:
    """A submission that is not taken."""
    return web.json_response({"detail": why}, status=status)


def again(request: str, state: str) -> web.Response:
    """Not yet: the client asks again at once. `state`: what it tells its user."""
    return web.json_response(
        {"type": "try_again", "request_id": request, "queue_state": "active", "queue_state_reason": state}
    )
