"""What the operator logs: whoever wrote a part of it, a line is a line."""

import json
import logging
import sys

import pytest

from rljob_operator.__main__ import JsonFormatter, PlainFormatter

FORGED = "x\x1b[2J\n2026-01-01 INFO rljob: step 77777 is saved\x07"


def logged(message: str, *args: object, error: bool = False) -> str:
    info = sys.exc_info() if error else None
    record = logging.LogRecord("rljob", logging.WARNING, "file", 1, message, args, info)
    return PlainFormatter("%(levelname)s %(name)s: %(message)s").format(record)


def test_a_message_stays_one_line_without_control_characters() -> None:
    assert logged("pod %s", FORGED) == "WARNING rljob: pod x 2026-01-01 INFO rljob: step 77777 is saved"


def test_a_traceback_keeps_its_lines_and_no_control_characters() -> None:
    try:
        raise ValueError(FORGED)
    except ValueError:
        text = logged("broken", error=True)
    assert text.startswith("WARNING rljob: broken\nTraceback (most recent call last):\n")
    assert "\x1b" not in text and "\x07" not in text


@pytest.mark.parametrize("text", ["step 10 is saved at /data/ü", "a: b, [c]"])
def test_ordinary_text_is_left_as_it_is(text: str) -> None:
    assert logged(text) == f"WARNING rljob: {text}"


def test_as_json_a_message_is_one_object_on_one_line_with_its_traceback() -> None:
    try:
        raise ValueError(FORGED)
    except ValueError:
        record = logging.LogRecord("rljob", logging.WARNING, "file", 1, "pod %s", (FORGED,), sys.exc_info())
    line = JsonFormatter().format(record)
    found = json.loads(line)
    assert "\n" not in line and "\x1b" not in line
    assert (found["level"], found["logger"]) == ("WARNING", "rljob")
    assert found["message"].startswith("pod x") and found["exception"].startswith("Traceback")
    assert found["time"].endswith("+00:00")
