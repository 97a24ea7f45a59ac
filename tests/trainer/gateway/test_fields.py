"""Bodies of few bytes that stand for many fields, of which protobuf would make many times as much."""

import resource
from pathlib import Path

import pytest
import zstandard
from tinker.proto import tinker_public_pb2 as sdk

from rljob_trainer.gateway.wire.fields import MOST_FIELDS, count_fields
from trainer.gateway.test_routes import opened
from trainer.gateway.test_wire import request

PASS = "ForwardBackwardRequest"
MANY = 2**19


def datum(**fields: object) -> sdk.ForwardBackwardRequest:
    return sdk.ForwardBackwardRequest(model_id="s:train:0", seq_id=1, data=[sdk.Datum(**fields)])


CROWDS = {
    "data": sdk.ForwardBackwardRequest(data=[sdk.Datum()] * MANY),
    "chunks": datum(model_input=[sdk.Chunk()] * MANY),
    "tensors": datum(loss_fn_inputs={f"{i:x}": sdk.Tensor() for i in range(MANY // 4)}),
    "dimensions": datum(loss_fn_inputs={"weights": sdk.Tensor(shape=[1] * MANY)}),
    "numbers": sdk.ForwardBackwardRequest(loss_fn_config={f"{i:x}": 1.0 for i in range(MANY)}),
}


@pytest.mark.parametrize("what", CROWDS)
def test_a_message_is_counted_with_all_that_is_in_it_and_no_further_than_it_may_have(what: str) -> None:
    assert count_fields(CROWDS[what].SerializeToString(), PASS) > MOST_FIELDS


def test_the_count_is_that_of_the_fields_that_were_sent() -> None:
    """Model, number, loss; a datum; its chunk; two tensors, each an entry with a key, and bytes, type, a shape of one dimension."""
    assert count_fields(request().SerializeToString(), PASS) == 3 + 1 + 1 + 2 * 7
    assert count_fields(b"", PASS) == 0


@pytest.mark.parametrize(
    "body", [b"\xff" * 2**20, b"\x0b", b"\x1a\xff\xff\xff\xff", b"\x08" + b"\x80" * 2**20, b"\x1a"]
)
def test_what_is_no_message_is_said_at_once(body: bytes) -> None:
    with pytest.raises(ValueError, match="the body"):
        count_fields(body, PASS)


async def test_a_body_of_few_bytes_and_many_data_fails_its_future_and_the_gateway_keeps_its_memory(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as desk:
        head = sdk.ForwardBackwardRequest(model_id=desk.model, seq_id=1).SerializeToString()
        body = zstandard.compress(head + b"\x1a\x00" * 2**24)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        accepted = await desk.bytes("forward_backward", body, "zstd")
        assert len(body) < 10_000 and accepted.status == 200, await accepted.text()
        assert desk.service.books[desk.model].line.entries[1].kind == "WorkFailure"
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 * 2**10
