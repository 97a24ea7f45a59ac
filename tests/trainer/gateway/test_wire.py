"""The clients' messages, against the SDK's own description of them."""

import errno
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError
from tinker.proto import tinker_public_pb2 as sdk
from tinker.proto.response_conv import deserialize_forward_backward_output, deserialize_sample_response

from rljob_api.type_errors import first_problem
from rljob_trainer.gateway.clients import ANYBODY, Keys
from rljob_trainer.gateway.wire import bodies
from rljob_trainer.gateway.wire.bodies import Pass, of_samples
from rljob_trainer.gateway.wire.messages import MESSAGES
from rljob_trainer.gateway.wire.requests import OptimStepParams, SampleParams
from rljob_trainer.wire.rollout_server import LikeliestTokens, SampleAnswer, SampleRequest, ServedSample
from rljob_trainer.wire.service import OptimStep, RefusedWork, WorkFailure, WorkResult, require_numbers

TOKENS, TARGETS = np.arange(5, 8, dtype="<i4"), np.array([9, 0, 3], "<i8")


def dense(values: Any, kind: int = sdk.DTYPE_FLOAT32) -> Any:
    array = np.asarray(values, "<f4" if kind == sdk.DTYPE_FLOAT32 else "<i8")
    return sdk.Tensor(dense=array.tobytes(), dtype=kind, shape=array.shape)


def request(**inputs: Any) -> Any:
    chunk = sdk.Chunk(encoded_text=sdk.EncodedTextChunk(tokens=TOKENS.tobytes()))
    given = {"target_tokens": dense(TARGETS, sdk.DTYPE_INT64), "weights": dense([1, 0.5, -2])} | inputs
    datum = sdk.Datum(model_input=[chunk], loss_fn_inputs={k: v for k, v in given.items() if v is not None})
    return sdk.ForwardBackwardRequest(model_id="s:train:0", seq_id=3, data=[datum], loss_fn="ppo")


def test_every_field_that_we_describe_has_the_sdks_number_kind_and_label() -> None:
    compared = 0
    for name, ours in MESSAGES.items():
        theirs = getattr(sdk, name, None)
        for field in ours.DESCRIPTOR.fields if theirs else ():
            other = theirs.DESCRIPTOR.fields_by_name[field.name]
            enum = other.type == other.TYPE_ENUM and field.type == field.TYPE_INT32
            assert (field.number, field.is_repeated) == (other.number, other.is_repeated), (name, field.name)
            assert enum or field.type == other.type, (name, field.name)
            compared += 1
    assert compared == sum(len(m.DESCRIPTOR.fields) for n, m in MESSAGES.items() if n != "Unread") > 30


def test_a_pass_is_read_with_its_columns_and_its_numbers() -> None:
    message = request()
    message.loss_fn_config_v2["clip_low_threshold"].number = 0.7
    message.loss_fn_config["clip_high_threshold"] = 1.4
    asked = Pass(message.SerializeToString())
    work = asked.work(longest=3)
    assert (asked.model, asked.seq, work.loss, work.forward_only) == ("s:train:0", 3, "ppo", False)
    assert work.config == {"clip_low_threshold": 0.7, "clip_high_threshold": 1.4}
    (datum,) = work.data
    assert datum.tokens.tolist() == TOKENS.tolist() and datum.targets.tolist() == TARGETS.tolist()
    assert datum.columns["weights"].tolist() == [1, 0.5, -2]


def test_a_sparse_tensor_is_the_matrix_that_it_stands_for() -> None:
    rows = np.array([0, 1, 1, 3], "<i8").tobytes()
    csr = sdk.SparseCsr(
        values=np.array([4, 5, 6], "<i8").tobytes(), crow_indices=rows, col_indices=np.array([1, 0, 1], "<i8").tobytes()
    )
    targets = sdk.Tensor(sparse_csr=csr, dtype=sdk.DTYPE_INT64, shape=[3, 2])
    work = Pass(request(target_tokens=targets, weights=dense(np.ones((3, 2)))).SerializeToString()).work(8)
    assert work.data[0].targets.tolist() == [[0, 4], [0, 0], [5, 6]]


SPARSE = {"target_tokens": sdk.DTYPE_INT64, "weights": sdk.DTYPE_FLOAT32}


def empty_rows(rows: int, columns: int, kind: int = sdk.DTYPE_FLOAT32) -> Any:
    """A sparse tensor without values: some bytes, whatever its shape."""
    return sdk.Tensor(sparse_csr=sdk.SparseCsr(), dtype=kind, shape=[rows, columns])


WRONG = [
    ({"target_tokens": None}, "datum 0 has no target_tokens"),
    ({"target_tokens": dense([1, 2], sdk.DTYPE_INT64)}, "target_tokens has shape [2]"),
    ({"weights": dense([1, 2])}, "weights has shape [2], target_tokens [3]"),
    ({"weights": sdk.Tensor(dense=b"123", dtype=sdk.DTYPE_FLOAT32, shape=[3])}, "weights"),
    ({"weights": sdk.Tensor(dense=bytes(6), dtype=sdk.DTYPE_BFLOAT16, shape=[3])}, "is not read"),
    ({"weights": sdk.Tensor(dense=b"", dtype=sdk.DTYPE_FLOAT32, shape=[2**40, 2**40])}, "16777216 is the most"),
    ({"weights": sdk.Tensor(dense=b"", dtype=sdk.DTYPE_FLOAT32, shape=[-(2**40), 2**40])}, "16777216 is the most"),
    (
        {"weights": sdk.Tensor(dense=b"", dtype=sdk.DTYPE_FLOAT32, shape=[0])},
        "weights has shape [0], target_tokens [3]",
    ),
    ({name: empty_rows(3, 129, kind) for name, kind in SPARSE.items()}, "at most 128 targets of each"),
    ({name: empty_rows(2**20, 1, kind) for name, kind in SPARSE.items()}, "for N = 3 tokens"),
    ({f"column {i}": empty_rows(3, 2**20) for i in range(6)}, "18874374 values, and 16777216 is the most"),
    (
        {"weights": sdk.Tensor(sparse_csr=sdk.SparseCsr(crow_indices=b"x"), dtype=sdk.DTYPE_FLOAT32, shape=[3, 9])},
        "weights",
    ),
]


@pytest.mark.parametrize(("inputs", "message"), WRONG)
def test_what_a_client_has_to_correct_is_named_and_model_and_number_are_known_all_the_same(
    inputs: dict[str, Any], message: str
) -> None:
    asked = Pass(request(**inputs).SerializeToString())
    assert (asked.model, asked.seq) == ("s:train:0", 3)
    with pytest.raises(ValueError) as error:
        asked.work(8)
    assert message in str(error.value)


def test_a_datum_that_is_too_long_is_refused() -> None:
    with pytest.raises(ValueError, match="datum 0 has 3 tokens; at most 2 are served"):
        Pass(request().SerializeToString()).work(longest=2)


def test_a_call_with_the_most_targets_is_read() -> None:
    weights = dense(np.ones((3, 128)))
    work = Pass(
        request(target_tokens=dense(np.ones((3, 128)), sdk.DTYPE_INT64), weights=weights).SerializeToString()
    ).work(8)
    assert work.data[0].targets.shape == (3, 128)


NUMBERS = [
    ({"learning_rate": 1e38}, "learning_rate"),
    ({"learning_rate": -1e-3}, "learning_rate"),
    ({"learning_rate": float("inf")}, "learning_rate"),
    ({"eps": 0.0}, "eps"),
    ({"eps": 1e-50}, "eps"),
    ({"weight_decay": 1e39}, "weight_decay"),
    ({"grad_clip_norm": 1e300}, "grad_clip_norm"),
    ({"beta1": 1.0}, "beta1"),
]


@pytest.mark.parametrize(("given", "name"), NUMBERS)
def test_gateway_and_ranks_refuse_numbers_that_the_optimizer_cannot_compute_with(
    given: dict[str, float], name: str
) -> None:
    with pytest.raises(ValidationError) as refused:
        OptimStepParams.model_validate({"adam_params": given})
    assert first_problem(refused.value).startswith(f"adam_params.{name}: ")
    with pytest.raises(RefusedWork, match=f"^{name} is "):
        require_numbers(OptimStep(**{"model": "m", "seq": 1, "learning_rate": 1e-3} | given))  # type: ignore[arg-type]


def test_the_largest_numbers_of_the_optimizer_are_taken() -> None:
    given = {"learning_rate": 1e20, "eps": 1e-30, "weight_decay": 1e20, "grad_clip_norm": 1e20, "beta1": 0.0}
    require_numbers(OptimStepParams.model_validate({"adam_params": given}).work("m", 1))


@pytest.mark.parametrize("body", [b"\xff", b"", request().SerializeToString()[:9]])
def test_a_body_without_model_or_number_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match="the body"):
        Pass(body)


def test_the_sdk_reads_log_probabilities_and_metrics_as_they_were() -> None:
    found = (np.array([-1, -2], "<f4"), np.array([-3], "<f4"))
    output = sdk.ForwardBackwardOutput.FromString(bodies.encode(WorkResult(metrics={"loss:sum": 1.5}, log_probs=found)))
    record = output.loss_fn_outputs[0]
    field = record.fields["logprobs"]
    assert dict(output.metrics) == {"loss:sum": 1.5} and record.num_datums == 2
    assert np.frombuffer(field.data, "<f4").tolist() == [-1, -2, -3]
    assert np.frombuffer(field.offsets, "<i8").tolist() == [0, 8, 12]
    assert (field.dtype, list(field.trailing_shape)) == (sdk.DTYPE_FLOAT32, [])


def test_the_sdk_reads_log_probabilities_of_data_with_different_numbers_of_targets() -> None:
    shapes = [(2,), (3, 2), (1, 2), (3, 1), (2,)]
    found = tuple(np.arange(np.prod(shape), dtype="<f4").reshape(shape) for shape in shapes)
    output = deserialize_forward_backward_output(bodies.encode(WorkResult(log_probs=found)))
    read = [datum["logprobs"].to_numpy() for datum in output.loss_fn_outputs]
    assert [(values.shape, values.tolist()) for values in read] == [(v.shape, v.tolist()) for v in found]


def test_the_sdk_reads_samples() -> None:
    answer = SampleAnswer(
        (ServedSample(np.array([4, 5], "<i4"), np.array([-1, -2], "<f4"), "stop"),), np.array([np.nan, -3], "<f4")
    )
    found = sdk.SampleResponse.FromString(bytes(of_samples(SampleAnswer.read(answer.body())).body))  # type: ignore[arg-type]
    (sequence,) = found.sequences
    assert (sequence.stop_reason, np.frombuffer(sequence.tokens, "<i4").tolist()) == (sdk.STOP_REASON_STOP, [4, 5])
    assert np.frombuffer(found.prompt_logprobs, "<f4").tolist()[1:] == [-3]


def test_the_sdk_reads_the_likeliest_tokens() -> None:
    of_sample = LikeliestTokens(np.array([[4, 9]], "<i4"), np.array([[-1, -3]], "<f4"))
    of_prompt = LikeliestTokens(np.array([[0, 0], [7, 0]], "<i4"), np.array([[np.nan, np.nan], [-2, np.nan]], "<f4"))
    sample = ServedSample(np.array([4], "<i4"), np.array([-1], "<f4"), "stop", of_sample)
    answer = SampleAnswer.read(SampleAnswer((sample,), likeliest_of_prompt=of_prompt).body())
    found = deserialize_sample_response(bytes(of_samples(answer).body))  # type: ignore[arg-type]
    assert found.topk_prompt_logprobs == [None, [(7, -2.0)]]
    assert found.sequences[0].topk_logprobs == [[(4, -1.0), (9, -3.0)]]
    assert answer.size == 8 * (1 + 2 + 4)


def params(prompt: list[int] = [7], **given: Any) -> SampleParams:  # noqa: B006 it is only read
    sampling = given.pop("sampling_params", {})
    return SampleParams.model_validate(
        {"prompt": {"chunks": [{"type": "encoded_text", "tokens": prompt}]}, "sampling_params": sampling} | given
    )


@pytest.mark.parametrize(
    ("stop", "read"),
    [(None, ((), (), True)), ([], ((), (), False)), ("\n", (("\n",), (), False)), ([3, 4], ((), (3, 4), False))],
)
def test_samples_end_where_the_client_says(stop: Any, read: Any) -> None:
    found = params(sampling_params={"stop": stop, "max_tokens": 3}).request(2, 11, 16)
    assert isinstance(found, SampleRequest)
    assert (tuple(found.stop), tuple(found.stop_tokens), found.ends, found.n, found.seed) == (*read, 2, 11)
    again = SampleRequest.read(found.body())
    assert again.body() == found.body()


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (params([]), "the prompt is empty"),
        (params([1] * 16, sampling_params={"max_tokens": 1}), "more than 16 tokens"),
        (params(prompt_alt_tokens_k=2), "prompt_alt_tokens_k is not served"),
    ],
)
def test_samples_that_are_not_served_say_why(asked: SampleParams, why: str) -> None:
    found = asked.request(1, 0, 16)
    assert isinstance(found, WorkFailure) and why in found.message


@pytest.mark.parametrize(
    ("asked", "scored"), [({}, 4), ({"prompt_logprobs_last_n": 3}, 3), ({"prompt_logprobs_last_n": 9}, 4)]
)
def test_log_probabilities_are_asked_for_of_the_last_tokens_of_a_prompt(asked: dict[str, int], scored: int) -> None:
    found = params([1, 2, 3, 4], prompt_logprobs=True, **asked).request(1, 0, 16)
    assert isinstance(found, SampleRequest) and SampleRequest.read(found.body()).prompt_log_probs == scored
    unasked = params([1, 2, 3, 4], **asked).request(1, 0, 16)
    assert isinstance(unasked, SampleRequest) and unasked.prompt_log_probs == 0


def test_keys_are_read_from_files_and_a_key_that_is_taken_away_opens_nothing_any_more(tmp_path: Path) -> None:
    (tmp_path / "ann").write_text("tml-a\n")
    (tmp_path / "bob").write_text("tml-b")
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "..data").write_text("tml-hidden")
    keys = Keys(tmp_path)
    assert [keys.client(key) for key in ("tml-a", "tml-b", "tml-c", "", "tml-hidden")] == [
        "ann",
        "bob",
        None,
        None,
        None,
    ]
    (tmp_path / "ann").unlink()
    assert keys.client("tml-a") is None
    assert Keys(None).client("") == ANYBODY


def test_a_key_that_is_taken_away_while_another_client_calls_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for client in ("ann", "bob"):
        (tmp_path / client).write_text(f"tml-{client}")
    real = Path.is_file

    def taken_away(file: Path) -> bool:
        found = real(file)
        (tmp_path / "ann").unlink(missing_ok=True)
        return found

    monkeypatch.setattr(Path, "is_file", taken_away)
    assert [Keys(tmp_path).client(f"tml-{client}") for client in ("bob", "ann")] == ["bob", None]


def test_a_key_that_cannot_be_read_opens_nothing_and_others_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for client in ("ann", "bob"):
        (tmp_path / client).write_text(f"tml-{client}")
    real = Path.read_bytes

    def read(file: Path) -> bytes:
        if file.name == "ann":
            raise PermissionError(errno.EACCES, "Permission denied", str(file))
        return real(file)

    monkeypatch.setattr(Path, "read_bytes", read)
    assert [Keys(tmp_path).client(f"tml-{client}") for client in ("bob", "ann")] == ["bob", None]


def test_a_key_of_bytes_that_are_no_text_is_a_wrong_key(tmp_path: Path) -> None:
    """As aiohttp reads a header."""
    (tmp_path / "ann").write_text("tml-a")
    (tmp_path / "bob").write_bytes(b"tml-\xff")
    keys = Keys(tmp_path)
    assert keys.client(b"tml-\xfe".decode(errors="surrogateescape")) is None
    assert keys.client(b"tml-\xff".decode(errors="surrogateescape")) == "bob"
