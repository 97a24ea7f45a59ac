"""Whatever pods put into status, events and logs: no verb ends in a traceback, and no terminal gets a control character."""

import copy
import json
import os
import pty
import re
import sys
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from cli.conftest import Rljob
from cli.fake_api import FakeApi
from cli.makers import make_event, make_job, make_spec, running
from kubectl_rljob.terminal import Terminal, visible

CONTROLS = [
    "\x1b[2J\x1b[H",
    "\x1b]0;title\x07",
    "\x9b31m",
    "\r",
    "\x08" * 9,
    "\u202e",
    "\u2028",
    "\x85",
    "\x0b",
    "\x00",
    "\t",
]
SPACES = [c for c in map(chr, range(sys.maxunicode)) if c.isspace()]
FORGED = "\nFORGED 77777 is saved"
ESCAPED = re.compile(r"[^\n\t -~\u00a0-\u200d\u2010-\u2027\u2030-\u2065\u2070-\ud7ff\ue000-\U0010ffff]")

texts = st.lists(
    st.sampled_from([*CONTROLS, FORGED, "word", "é", "漢字", "'; rm -rf ~"]) | st.text(max_size=5), max_size=6
).map("".join)
numbers = st.sampled_from([0, -1, 7, 10**30, 2**63, 1e300, -1e300, 5e-324, float("nan"), float("inf")])
times = st.sampled_from(["", "yesterday", "9999-12-31T23:59:59Z", "0001-01-01T00:00:00", "2026-11-21T11:00:00Z\x1b[1m"])
"""For fields that hold a moment as text, which are strings like others to the API server."""


def hostile(value: Any) -> st.SearchStrategy[Any]:
    """The same shape with other leaves."""
    match value:
        case dict():
            return st.fixed_dictionaries({key: hostile(held) for key, held in value.items()})
        case list():
            return st.tuples(*map(hostile, value[:3])).map(list)
        case str():
            return st.just(value) | texts | times
        case bool() | None:
            return st.just(value)
        case _:
            return st.just(value) | numbers


def hostile_status() -> st.SearchStrategy[dict[str, Any]]:
    status = running() | {
        "placement": {"report": {"stages": ["a"], "rollouts": ["b", ""], "levels": [{"level": "rack", "pairs": 1}]}}
    }
    status["progress"] |= {"evaluation": {"first": 0.1, "last": 0.2}, "export": "/data/run/hf"}
    states = st.sampled_from(["Running", "Failed", "Succeeded", "Suspended"])
    return st.builds(lambda found, state: found | {"state": state}, hostile(status), states)


VERBS = [
    ("list",),
    ("list", "-A"),
    ("status", "demo"),
    ("watch", "demo"),
    ("metrics", "demo"),
    ("logs", "demo"),
    ("describe-failure", "demo"),
    ("checkpoints", "demo"),
    ("suspend", "demo"),
    ("resume", "demo"),
    ("resume", "demo", "--from-step", "90"),
    ("restart", "demo"),
    *(
        (verb, *name, "-o", form)
        for verb, *name in (("list",), ("status", "demo"), ("checkpoints", "demo"))
        for form in ("json", "yaml")
    ),
    ("metrics", "demo", "-o", "json"),
    ("describe-failure", "demo", "-o", "yaml"),
]


@pytest.mark.parametrize("argv", VERBS, ids=" ".join)
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(status=hostile_status(), reason=texts, message=texts)
def test_a_hostile_status_is_printed_harmlessly(
    api: FakeApi, rljob: Rljob, argv: tuple[str, ...], status: dict[str, Any], reason: str, message: str
) -> None:
    ended = {"state": "Failed"} if argv[0] == "watch" else {}
    api.add(make_job(**copy.deepcopy(status) | ended))
    api.events = [
        make_event(reason, message, minutes=3),
        make_event(reason, message, minutes=5) | {"lastTimestamp": message},
    ]
    screen = rljob(*argv)
    assert screen.code in (0, 1, 3)
    assert "Traceback" not in screen.out + screen.err
    assert not ESCAPED.search(screen.out + screen.err)
    assert not any(line.startswith("FORGED") for line in (screen.out + screen.err).split("\n"))


@given(texts | st.text(st.sampled_from(SPACES), min_size=1, max_size=3))
@example("\xa0")
def test_data_is_complete_although_its_controls_are_escaped(text: str) -> None:
    from kubectl_rljob.printers import data

    assert json.loads(data.render({"message": text}, "json")) == {"message": text}
    assert yaml.safe_load(data.render({"message": text}, "yaml")) == {"message": text}


@given(st.text())
def test_what_is_visible_stays_so(text: str) -> None:
    assert not ESCAPED.search(visible(text))
    assert visible(visible(text)) == visible(text)


def test_a_job_that_cannot_be_read_does_not_hide_the_others(api: FakeApi, rljob: Rljob) -> None:
    api.add(make_job("bad", spec=make_spec(), state=["\x1b[2J"]))
    api.add(make_job("good", **running()))
    screen = rljob("list")
    assert screen.code == 1
    assert [line.split()[:2] for line in screen.out.splitlines()[1:]] == [["bad", "Unreadable"], ["good", "Running"]]
    assert screen.err.startswith("error: rljob bad in namespace research: status.state: ")


@pytest.mark.parametrize(
    ("pieces", "terminal", "pipe"),
    [
        ([b"a\x1b[2", b"Jb\n"], "a\\x1b[2Jb\n", b"a\x1b[2Jb\n"),
        ([b"10 %\r20 %\r\n"], "10 %\n20 %\n", b"10 %\r20 %\r\n"),
        ([b"\xc3", b"\xa9\xff\n"], "é�\n", b"\xc3\xa9\xff\n"),
    ],
)
def test_a_log_is_harmless_on_a_terminal_and_itself_in_a_pipe(
    pieces: list[bytes], terminal: str, pipe: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def written(open_: Callable[[], tuple[int, int]]) -> bytes:
        reader, writer = open_()
        with monkeypatch.context() as patch, os.fdopen(writer, "w") as stream:
            patch.setattr(sys, "stdout", stream)
            Terminal().stream(pieces)
        found = b""
        while not found.endswith(b"\n"):
            found += os.read(reader, 1000)
        os.close(reader)
        return found

    assert written(pty_pair).decode().replace("\r\n", "\n") == terminal
    assert written(os.pipe) == pipe


_open: list[int] = []


def pty_pair() -> tuple[int, int]:
    """(what a person sees, what the program writes to); the latter stays open, or the former could not be read."""
    reader, writer = pty.openpty()
    _open.append(os.dup(writer))
    return reader, writer
