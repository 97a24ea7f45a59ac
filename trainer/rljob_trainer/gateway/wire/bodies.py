"""Bodies in the clients' words: forward and backward passes as work, and results."""

import math
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any, cast

import numpy as np
from aiohttp import web
from google.protobuf.message import DecodeError

from rljob_trainer.gateway.wire.fields import varint
from rljob_trainer.gateway.wire.messages import DTYPES, FLOAT32, LENGTH, MESSAGES, NO_TOKEN, STOP
from rljob_trainer.wire.batch import Array
from rljob_trainer.wire.gateway import decode_result
from rljob_trainer.wire.rollout_server import LikeliestTokens, SampleAnswer
from rljob_trainer.wire.service import MOST_TARGETS, Datum, ForwardBackward, WorkFailure, WorkResult

TARGETS = "target_tokens"
_MODEL_ID, _SEQ_ID = 0x0A, 0x10
"""What stands in a body before these fields: number and type."""
MOST_VALUES = 2**24
"""In all tensors of a call: a body has no room for more of them, but a sparse tensor is small in a body. And in all samples that are asked for at
once: tokens, and the likeliest ones at each."""
PROTOBUF = "application/x-protobuf"


class Pass:
    """A body whose model and number are known; `work` reads the rest."""

    def __init__(self, body: bytes) -> None:
        """Raises ValueError when the body is no such message, or names no model."""
        try:
            self._message = MESSAGES["ForwardBackwardRequest"].FromString(body)
        except DecodeError as error:
            raise ValueError(f"the body is no ForwardBackwardRequest: {error}") from None
        self.model, self.seq = named(self._message.model_id, self._message.seq_id)

    def work(self, longest: int) -> ForwardBackward:
        """`longest`: most tokens of a datum. Raises ValueError for what the client has to correct."""
        message = self._message
        if not message.data:
            raise ValueError("there is no datum")
        _require_room(message)
        return ForwardBackward(
            model=self.model,
            seq=self.seq,
            data=tuple(_datum(datum, i, longest) for i, datum in enumerate(message.data)),
            loss=message.loss_fn,
            config=dict(sorted(_config(message).items())),
            forward_only=message.forward_only,
        )


def beginning(body: bytes) -> tuple[str, int]:
    """Model and number of a pass, of whose body only the beginning is there: these two come first. Raises ValueError."""
    try:
        length, start = varint(body, 1)
        number, _ = varint(body, start + length + 1)
        first, second = body[0], body[start + length]
    except IndexError:
        raise ValueError("the body ends before its seq_id") from None
    if (first, second) != (_MODEL_ID, _SEQ_ID):
        raise ValueError("the body does not begin with model_id and seq_id")
    return named(body[start : start + length].decode(), number)


def named(model: str, seq: int) -> tuple[str, int]:
    """What a pass is for. Raises ValueError."""
    if not model or seq < 1:
        raise ValueError("the body has no model_id, or no seq_id above 0")
    return model, seq


def encode(result: WorkResult) -> bytes:
    """The body of a result."""
    output = MESSAGES["ForwardBackwardOutput"](loss_fn_output_type="ArrayRecord", metrics=dict(result.metrics))
    for trailing, alike in groupby(result.log_probs, key=lambda values: values.shape[1:]):
        _add(output, [np.ascontiguousarray(values, "<f4") for values in alike], trailing)
    return cast(bytes, output.SerializeToString())


def _add(output: Any, log_probs: list[Array], trailing: tuple[int, ...]) -> None:
    """Those of some data that have as many targets at each position: `trailing`, empty where that is one."""
    record = output.loss_fn_outputs.add(type_tag="ArrayRecord", num_datums=len(log_probs))
    field = record.fields["logprobs"]
    field.data, field.dtype = b"".join(values.tobytes() for values in log_probs), FLOAT32
    field.offsets = np.cumsum([0, *(values.nbytes for values in log_probs)]).astype("<i8").tobytes()
    field.trailing_shape.extend(trailing)


def _config(message: Any) -> dict[str, float]:
    texts = [name for name, value in message.loss_fn_config_v2.items() if value.HasField("text")]
    if texts:
        raise ValueError(f"loss_fn_config: {', '.join(texts)} must be a number")
    return dict(message.loss_fn_config) | {name: v.number for name, v in message.loss_fn_config_v2.items()}


def _datum(message: Any, index: int, longest: int) -> Datum:
    chunks = list(_tokens(message.model_input, index))
    tokens = chunks[0] if len(chunks) == 1 else np.concatenate([np.zeros(0, "<i4"), *chunks])
    if len(tokens) > longest:
        raise ValueError(f"datum {index} has {len(tokens)} tokens; at most {longest} are served")
    tensors = dict(sorted(message.loss_fn_inputs.items()))
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    _check(index, len(tokens), shapes)
    inputs = {name: _tensor(tensor, shapes[name], index, name) for name, tensor in tensors.items()}
    targets = inputs.pop(TARGETS).astype("<i8", copy=False)
    return Datum(tokens, targets, {name: values.astype("<f4", copy=False) for name, values in inputs.items()})


def _require_room(message: Any) -> None:
    """Before anything is made of a sparse tensor. Raises ValueError."""
    shapes = [tensor.shape for datum in message.data for tensor in datum.loss_fn_inputs.values()]
    values = sum(math.prod(map(abs, shape)) for shape in shapes)
    if values > MOST_VALUES:
        raise ValueError(
            f"the tensors of this call have {values} values, and {MOST_VALUES} is the most: make several calls"
        )


def _check(index: int, tokens: int, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Whether the tensors of a datum have the shapes that they need. Raises ValueError."""
    if TARGETS not in shapes:
        raise ValueError(f"datum {index} has no {TARGETS}")
    needed = shapes[TARGETS]
    if len(needed) not in (1, 2) or needed[0] != tokens or min(needed) < 1 or max(needed[1:], default=1) > MOST_TARGETS:
        raise ValueError(
            f"datum {index}: {TARGETS} has shape {list(needed)}; it must be [N] or [N, K] for N = {tokens} tokens and at most "
            f"{MOST_TARGETS} targets of each"
        )
    for name, shape in shapes.items():
        if shape != needed:
            raise ValueError(
                f"datum {index}: {name} has shape {list(shape)}, {TARGETS} {list(needed)}; both must be equal"
            )


def _tokens(chunks: Any, index: int) -> Iterator[Array]:
    for chunk in chunks:
        if not chunk.HasField("encoded_text"):
            raise ValueError(f"datum {index}: only text is served, no images and no audio")
        yield np.frombuffer(chunk.encoded_text.tokens, "<i4")


def _tensor(message: Any, shape: tuple[int, ...], index: int, name: str) -> Array:
    """`message`: of a shape that was checked. Raises ValueError."""
    kind = DTYPES.get(message.dtype)
    if kind is None:
        raise ValueError(f"datum {index}: {name}: a tensor of type {message.dtype} is not read")
    try:
        if message.HasField("sparse_csr"):
            return _dense(message.sparse_csr, kind, shape)
        return np.frombuffer(message.dense, kind).reshape(shape)
    except (ValueError, IndexError) as error:
        raise ValueError(f"datum {index}: {name}: {error}") from None


def _dense(sparse: Any, kind: str, shape: tuple[int, ...]) -> Array:
    """A matrix from its compressed rows."""
    if len(shape) != 2:
        raise ValueError("a sparse tensor has two dimensions")
    begins, columns = np.frombuffer(sparse.crow_indices, "<i8"), np.frombuffer(sparse.col_indices, "<i8")
    values = np.frombuffer(sparse.values, kind)
    dense = np.zeros(shape, kind)
    counts = np.diff(begins)
    if len(counts) != shape[0] or (counts < 0).any() or counts.sum() != len(values) or (columns < 0).any():
        raise ValueError("its rows do not fit its values")
    dense[np.repeat(np.arange(shape[0]), counts), columns] = values
    return dense


def of_request(kind: str, body: bytes, names: dict[str, str]) -> web.Response:
    """The result of a model's request. `kind`: of its work. `names`: of what it has made, for JSON."""
    result = decode_result(body)
    if isinstance(result, WorkFailure):
        return failed(result)
    if kind == "ForwardBackward":
        return web.Response(body=encode(result), content_type=PROTOBUF)
    metrics: dict[str, Any] = {"metrics": dict(result.metrics)} if kind == "OptimStep" else {}
    return web.json_response(metrics | names)


def of_samples(answer: SampleAnswer) -> web.Response:
    response = MESSAGES["SampleResponse"]()
    for sample in answer.samples:
        sequence = response.sequences.add(stop_reason=STOP if sample.finish_reason == "stop" else LENGTH)
        sequence.tokens = np.asarray(sample.tokens, "<i4").tobytes()
        sequence.logprobs = np.asarray(sample.log_probs, "<f4").tobytes()
        if sample.likeliest:
            _put(sample.likeliest, sequence.topk_sampled_logprobs)
    if answer.prompt is not None:
        response.prompt_logprobs = np.asarray(answer.prompt, "<f4").tobytes()
    if answer.likeliest_of_prompt:
        _put(answer.likeliest_of_prompt, response.topk_prompt_logprobs)
    return web.Response(body=response.SerializeToString(), content_type=PROTOBUF)


def _put(likeliest: LikeliestTokens, message: Any) -> None:
    message.token_ids = np.asarray(likeliest.tokens, "<i4").tobytes()
    message.logprobs = np.nan_to_num(likeliest.log_probs, nan=NO_TOKEN).astype("<f4").tobytes()
    message.length, message.k = likeliest.tokens.shape


def failed(why: WorkFailure) -> web.Response:
    """A future that has failed; the client raises it from this future alone."""
    return web.json_response({"error": why.message, "category": why.category})


def refused(status: int, why: str) -> web.Response:
    """A submission that is not taken."""
    return web.json_response({"detail": why}, status=status)


def again(request: str, state: str, away: str) -> web.Response:
    """Not yet: the client asks again at once. `state`: what is waited for; `away`: why that is not there now, which the client tells its user after a
    while; empty: it is there."""
    queue = {"queue_state": "paused_capacity" if away else "active", "queue_state_reason": away or state}
    return web.json_response({"type": "try_again", "request_id": request} | queue)
