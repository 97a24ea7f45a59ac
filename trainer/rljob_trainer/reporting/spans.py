"""The time line of each step as OpenTelemetry spans: a file in the run directory, and a collector where the environment names one.

The format is OTLP's JSON (opentelemetry.io/docs/specs/otlp, "JSON Protobuf Encoding"), one request to export traces per file and line, as the
collector's OTLP JSON file receiver reads it. A trace is a step.
"""

import hashlib
import json
import logging
import threading
import urllib.request
from collections import defaultdict
from collections.abc import Mapping
from http.client import HTTPException
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple
from urllib.parse import unquote

from rljob_api import names
from rljob_api.protocol import Control
from rljob_trainer.reporting.kept_steps import delete_old
from rljob_trainer.reporting.timeline import Interval, ProcessSpan
from rljob_trainer.reporting.tracker import wait_for_last_points
from rljob_trainer.textfile import replace

ENDPOINT, TRACES_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
HEADERS, TRACES_HEADERS = "OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"
PROTOCOL, TRACES_PROTOCOL = "OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"
"""As in opentelemetry.io/docs/specs/otel/protocol/exporter: what is for traces alone goes before what is for all signals."""
SECONDS = 10.0
"""The specification's own limit of a request."""
INTERNAL = 1
"""SpanKind of OTLP."""
WHOLE = "driver"
"""The process of the span of a whole step."""

log = logging.getLogger(__name__)


class Collector(NamedTuple):
    """Where spans are sent."""

    url: str
    headers: Mapping[str, str]

    @staticmethod
    def of(environment: Mapping[str, str]) -> "Collector | None":
        """None where none is named, or only one that speaks gRPC."""
        url = environment.get(TRACES_ENDPOINT) or _traces(environment.get(ENDPOINT, ""))
        if not url:
            return None
        protocol = environment.get(TRACES_PROTOCOL) or environment.get(PROTOCOL) or "http/json"
        if protocol == "grpc" or not url.lower().startswith(("http://", "https://")):
            log.warning(
                "no spans are exported to %s with %s: name the collector's address for OTLP over HTTP, such as http://collector:4318, in %s",
                url,
                protocol,
                ENDPOINT,
            )
            return None
        return Collector(url, _headers(environment.get(TRACES_HEADERS) or environment.get(HEADERS, "")))

    def send(self, body: bytes) -> None:
        """Raises OSError and HTTPException, which say why the collector does not have it, and ValueError for an address or a header that cannot be
        sent, which may hold a key."""
        headers = {**self.headers, "Content-Type": "application/json"}
        with urllib.request.urlopen(urllib.request.Request(self.url, body, headers), timeout=SECONDS):
            pass


class SpanLog:
    """Writes and sends the spans of steps, in a thread: training waits for neither."""

    def __init__(self, root: Path, control: Control, collector: Collector | None):
        self._root, self._control, self._collector = root, control, collector
        self._waiting: SimpleQueue[tuple[int, Interval] | None] = SimpleQueue()
        self._writer = threading.Thread(target=self._write_all, daemon=True)
        self._writer.start()

    def append(self, step: int, interval: Interval) -> None:
        """Returns at once."""
        self._waiting.put((step, interval))

    def close(self) -> None:
        self._waiting.put(None)
        wait_for_last_points(self._writer, "the OpenTelemetry collector")

    def _write_all(self) -> None:
        while waiting := self._waiting.get():
            step, interval = waiting
            text = json.dumps(export_request(self._control, step, interval))
            try:
                self._write(step, text)
            except OSError as error:
                log.warning("the spans of step %d are not in the run directory: %s", step, error)
            if self._collector:
                self._send(self._collector, step, text)

    def _write(self, step: int, text: str) -> None:
        file = names.spans_file(self._root, step)
        file.parent.mkdir(parents=True, exist_ok=True)
        replace(file, text + "\n")
        delete_old(file.parent, step)

    def _send(self, collector: Collector, step: int, text: str) -> None:
        try:
            collector.send(text.encode())
        except (OSError, HTTPException) as error:
            # %r: of an answer that is not HTTP, as gRPC's, the text may have control characters
            log.warning("the OpenTelemetry collector lacks the spans of step %d: %r", step, error)
        except ValueError:
            log.warning(
                "the OpenTelemetry collector lacks the spans of step %d: its address or a header holds what cannot be sent",
                step,
            )


def export_request(control: Control, step: int, interval: Interval) -> dict[str, Any]:
    """An ExportTraceServiceRequest: one trace, whose root is the step, and one resource for each process."""
    trace = _digest(control, step)
    whole = ProcessSpan(WHOLE, f"step {step}", interval.began, interval.ended)
    root = _span(trace, 0, step, whole)
    of_processes: dict[str, list[dict[str, Any]]] = defaultdict(list, {WHOLE: [root]})
    for number, span in enumerate(interval.spans, 1):
        of_processes[span.process].append({**_span(trace, number, step, span), "parentSpanId": root["spanId"]})
    return {"resourceSpans": [_of_process(control, name, spans) for name, spans in of_processes.items()]}


def _of_process(control: Control, process: str, spans: list[dict[str, Any]]) -> dict[str, Any]:
    resource: dict[str, str | int] = {
        "service.name": process,
        "service.namespace": control.name,
        "k8s.namespace.name": control.namespace,
        "rljob.uid": control.job_uid,
        "rljob.attempt": control.attempt,
    }
    scope = {"name": "rljob_trainer"}
    return {"resource": {"attributes": _attributes(resource)}, "scopeSpans": [{"scope": scope, "spans": spans}]}


def _span(trace: str, number: int, step: int, span: ProcessSpan) -> dict[str, Any]:
    """Ids are hexadecimal, and 64-bit numbers are texts."""
    return {
        "traceId": trace,
        "spanId": hashlib.sha256(f"{trace}:{number}".encode()).hexdigest()[:16],
        "name": span.name,
        "kind": INTERNAL,
        "startTimeUnixNano": str(span.began),
        "endTimeUnixNano": str(span.ended),
        "attributes": _attributes({"rljob.step": step}),
    }


def _attributes(values: Mapping[str, str | int]) -> list[dict[str, Any]]:
    return [
        {"key": key, "value": {"stringValue": value} if isinstance(value, str) else {"intValue": str(value)}}
        for key, value in values.items()
    ]


def _digest(control: Control, step: int) -> str:
    """The trace id of a step of an attempt."""
    return hashlib.sha256(f"{control.job_uid}:{control.attempt}:{step}".encode()).hexdigest()[:32]


def _traces(endpoint: str) -> str:
    return f"{endpoint.rstrip('/')}/v1/traces" if endpoint else ""


def _headers(text: str) -> dict[str, str]:
    """Of `key=value,key=value`, with values as in a URL (W3C Baggage)."""
    pairs = (pair.partition("=") for pair in text.split(",") if "=" in pair)
    return {key.strip(): unquote(value.strip()) for key, _, value in pairs}
