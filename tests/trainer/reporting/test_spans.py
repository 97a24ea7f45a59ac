"""Spans as OTLP's JSON: in the run directory, and at a receiver that reads them as OpenTelemetry's own messages."""

import json
import logging
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from api.specs import make_spec
from rljob_api import names
from rljob_api.protocol import Control, Resume
from rljob_trainer.reporting.kept_steps import KEPT_STEPS
from rljob_trainer.reporting.spans import (
    ENDPOINT,
    HEADERS,
    PROTOCOL,
    TRACES_ENDPOINT,
    TRACES_HEADERS,
    TRACES_PROTOCOL,
    Collector,
    SpanLog,
)
from rljob_trainer.reporting.timeline import Interval, ProcessSpan
from web_server import answering

INTERVAL = Interval(
    10**18,
    10**18 + 9,
    [ProcessSpan("trainer", "training", 10**18 + 1, 10**18 + 5), ProcessSpan("r0", "generating", 10**18, 10**18 + 3)],
)


def control(root: Path) -> Control:
    spec = make_spec(checkpoint={"path": str(root)})
    return Control(name="demo", namespace="ns", job_uid="uid", attempt=2, resume=Resume(policy="auto"), spec=spec)


def read(text: str) -> Any:
    """By OpenTelemetry's own definition of the message, where ids are base64 as in JSON of protobuf."""
    from google.protobuf import json_format
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    return json_format.Parse(text, ExportTraceServiceRequest())


def test_a_step_is_one_trace_with_a_resource_for_each_process(tmp_path: Path) -> None:
    spans = SpanLog(tmp_path, control(tmp_path), None)
    spans.append(7, INTERVAL)
    spans.close()
    text = names.spans_file(tmp_path, 7).read_text()
    assert text.endswith("}\n") and text.count("\n") == 1
    request = read(text)
    found = {}
    for resource in request.resource_spans:
        attributes = {a.key: a.value for a in resource.resource.attributes}
        assert attributes["service.namespace"].string_value == "demo" and attributes["rljob.attempt"].int_value == 2
        for span in resource.scope_spans[0].spans:
            found[attributes["service.name"].string_value, span.name] = span
    assert found.keys() == {("driver", "step 7"), ("trainer", "training"), ("r0", "generating")}
    root, training = found["driver", "step 7"], found["trainer", "training"]
    assert (training.start_time_unix_nano, training.end_time_unix_nano) == (10**18 + 1, 10**18 + 5)
    assert not root.parent_span_id and training.parent_span_id == root.span_id
    ids = [span for r in json.loads(text)["resourceSpans"] for s in r["scopeSpans"] for span in s["spans"]]
    assert {len(bytes.fromhex(span["traceId"])) for span in ids} == {16} and len({span["traceId"] for span in ids}) == 1
    assert {len(bytes.fromhex(span["spanId"])) for span in ids} == {8} and len({span["spanId"] for span in ids}) == 3


def test_old_steps_do_not_fill_the_volume(tmp_path: Path) -> None:
    spans = SpanLog(tmp_path, control(tmp_path), None)
    for step in range(1, KEPT_STEPS + 4):
        spans.append(step, INTERVAL)
    spans.close()
    assert {file.name for file in (tmp_path / "spans").iterdir()} == {
        f"step_{step}.jsonl" for step in range(4, KEPT_STEPS + 4)
    }


def test_a_receiver_gets_what_the_file_has_with_the_headers_of_the_environment(tmp_path: Path) -> None:
    got: list[tuple[str, dict[str, str], str]] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            got.append((self.path, {name.lower(): value for name, value in self.headers.items()}, body))
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *arguments: object) -> None: ...

    with answering(Receiver) as address:
        asked = {ENDPOINT: f"{address}/", HEADERS: "authorization=Bearer%20secret, x-team=rl"}
        spans = SpanLog(tmp_path, control(tmp_path), Collector.of(asked))
        spans.append(1, INTERVAL)
        spans.close()
    ((path, headers, body),) = got
    assert path == "/v1/traces" and headers["content-type"] == "application/json"
    assert headers["authorization"] == "Bearer secret" and headers["x-team"] == "rl"
    assert body == names.spans_file(tmp_path, 1).read_text().rstrip("\n")
    assert len(read(body).resource_spans) == 3


def test_a_receiver_that_refuses_or_is_away_costs_a_warning_and_the_next_step_is_sent(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Full(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_error(503)

        def log_message(self, *arguments: object) -> None: ...

    with answering(Full) as address:
        full = SpanLog(tmp_path, control(tmp_path), Collector.of({ENDPOINT: address}))
        full.append(1, INTERVAL)
        full.append(2, INTERVAL)
        full.close()
    away = SpanLog(tmp_path, control(tmp_path), Collector.of({ENDPOINT: address}))
    away.append(3, INTERVAL)
    away.close()
    said = [record.getMessage() for record in caplog.records]
    assert [f"spans of step {step}" in text for step, text in zip((1, 2, 3), said, strict=True)] == [True] * 3
    assert "503" in said[0] and "refused" in said[2]


def appended(root: Path, environment: dict[str, str], caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the log says of two steps, which have to be in the run directory whatever the collector does."""
    spans = SpanLog(root, control(root), Collector.of(environment))
    for step in (1, 2):
        spans.append(step, INTERVAL)
    spans.close()
    assert all(names.spans_file(root, step).is_file() for step in (1, 2))
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize(
    "answer",
    [
        b"\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x05\x00\x00\x40\x00\n",  # settings of HTTP/2, as a server of gRPC begins
        b"",
        b"garbage\r\n\r\n",
        b"HTTP/1.1 " + b"2" * 70_000,
    ],
)
def test_an_answer_that_is_not_http_costs_a_warning_for_each_step(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, answer: bytes
) -> None:
    class Garbage(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.wfile.write(answer)

    with answering(Garbage) as address:
        said = appended(tmp_path, {ENDPOINT: address}, caplog)
    assert ["lacks the spans of step" in text and text.isprintable() for text in said] == [True, True]


@pytest.mark.parametrize("url", ["http://c:port", "http://c/a path", "http://[::1", "http://", "http://c\n"])
def test_an_address_that_is_none_costs_a_warning_for_each_step(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, url: str
) -> None:
    said = appended(tmp_path, {TRACES_ENDPOINT: url}, caplog)
    assert ["lacks the spans of step" in text and text.isprintable() for text in said] == [True, True]


@pytest.mark.parametrize("value", ["Bearer%20secret%0Ax", "secret\u20ac"])
def test_a_header_that_cannot_be_sent_costs_a_warning_without_its_value(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, value: str
) -> None:
    with answering(BaseHTTPRequestHandler) as address:
        said = appended(tmp_path, {ENDPOINT: address, HEADERS: f"authorization={value}"}, caplog)
    assert ["a header holds what cannot be sent" in text for text in said] == [True, True]
    assert "secret" not in caplog.text


def test_what_is_for_traces_alone_goes_before_what_is_for_all_signals() -> None:
    shared = {ENDPOINT: "http://c:4318", HEADERS: "a=1,b=2", PROTOCOL: "grpc"}
    assert Collector.of(shared) is None
    assert Collector.of(shared | {TRACES_PROTOCOL: "http/json", TRACES_HEADERS: "a=3"}) == Collector(
        "http://c:4318/v1/traces", {"a": "3"}
    )
    assert Collector.of(shared | {PROTOCOL: "http/json", TRACES_PROTOCOL: "grpc"}) is None
    empty = {PROTOCOL: "", TRACES_PROTOCOL: "", TRACES_HEADERS: ""}
    assert Collector.of(shared | empty) == Collector("http://c:4318/v1/traces", {"a": "1", "b": "2"})


@pytest.mark.parametrize(
    ("environment", "url"),
    [
        ({}, None),
        ({ENDPOINT: "http://c:4318"}, "http://c:4318/v1/traces"),
        ({ENDPOINT: "https://c/otel/"}, "https://c/otel/v1/traces"),
        ({ENDPOINT: "http://c:4318", TRACES_ENDPOINT: "http://t/x"}, "http://t/x"),
        ({ENDPOINT: "http://c:4318", PROTOCOL: "http/protobuf"}, "http://c:4318/v1/traces"),
    ],
)
def test_the_address_is_as_the_specification_says(environment: dict[str, str], url: str | None) -> None:
    found = Collector.of(environment)
    assert (found.url if found else None) == url


@pytest.mark.parametrize("environment", [{ENDPOINT: "c:4317"}, {ENDPOINT: "http://c:4317", PROTOCOL: "grpc"}])
def test_a_collector_that_speaks_grpc_gets_nothing_and_the_log_says_why(
    environment: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert Collector.of(environment) is None
    assert "OTLP over HTTP, such as http://collector:4318, in OTEL_EXPORTER_OTLP_ENDPOINT" in caplog.text
