"""What a person sees on a real terminal: colours, pages as wide as it is, and a page that is drawn again."""

import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.text import Text

from cli.fake_api import FakeApi
from cli.makers import make_job, running
from kubectl_rljob.terminal import Colours

ROOT = Path(__file__).parents[2]


@pytest.fixture
def terminal(tmp_path: Path, api: FakeApi) -> Callable[..., tuple[str, int]]:
    """`terminal(40, "list")`: what the plugin writes to a terminal of so many columns, and its exit code."""

    def run(columns: int, *argv: str) -> tuple[str, int]:
        reader, writer = pty.openpty()
        environment = {
            **os.environ,
            "KUBECONFIG": str(tmp_path / "kubeconfig"),
            "PYTHONPATH": str(ROOT / "operator"),
            "TERM": "xterm-256color",
            "COLUMNS": str(columns),
        }
        program = [sys.executable, "-m", "kubectl_rljob", *argv]
        with subprocess.Popen(program, stdin=writer, stdout=writer, stderr=writer, env=environment) as plugin:
            os.close(writer)
            text = b""
            try:
                while piece := os.read(reader, 65536):
                    text += piece
            except OSError:  # how Linux says that nobody has the other end open any more
                pass
            os.close(reader)
            return text.decode().replace("\r\n", "\n"), plugin.wait(60)

    return run


def test_states_are_coloured_and_messages_of_pods_are_made_visible(
    api: FakeApi, terminal: Callable[..., tuple[str, int]]
) -> None:
    api.add(make_job("good", **running()))
    api.add(make_job("bad", state="Failed", progress={"text": "\x1b[2J"}))
    text, _ = terminal(100, "list")
    assert "\x1b[32mRunning\x1b[0m" in text
    assert "\x1b[1;31mFailed\x1b[0m" in text
    assert "\\x1b[2J" in text
    assert "\x1b[2J" not in text


def test_a_page_fits_a_narrow_terminal(api: FakeApi, terminal: Callable[..., tuple[str, int]]) -> None:
    status = running() | {"message": "word " * 60}
    api.add(make_job(**status))
    text, code = terminal(70, "status", "demo")
    lines = Text.from_ansi(text).plain.split("\n")
    assert code == 0
    assert max(map(len, lines)) <= 70
    assert len(lines) <= 25


def test_watch_draws_the_page_and_leaves_the_last_one(api: FakeApi, terminal: Callable[..., tuple[str, int]]) -> None:
    api.add(make_job(**running() | {"state": "Failed", "outcome": "Failed"}))
    text, code = terminal(120, "watch", "demo", "--interval", "0.05")
    assert code == 3
    assert "OutOfMemoryError" in text


def test_headings_are_bold_and_what_follows_them_is_not() -> None:
    page = "EXPORT        /data/run\nREWARD 0.5\nLAST FAILURE   attempt 1\nSTEP 60\nROLE      READY   INFO\nGIB PER GPU   WEIGHTS"
    headings = [page[s.start : s.end] for s in Colours()(page).spans if str(s.style) == "rljob.heading"]
    assert headings == ["EXPORT", "REWARD", "LAST FAILURE", "STEP", "ROLE      READY   INFO", "GIB PER GPU   WEIGHTS"]


def test_each_text_of_a_sample_has_the_colour_of_who_wrote_it() -> None:
    page = "prompt 7\n  prompt       1+1=\n  policy 9     a\n               b\n  environment  c\n  policy 9     d"
    styles = {str(span.style): span for span in Colours()(page).spans}
    written = {name.removeprefix("rljob."): page[span.start : span.end] for name, span in styles.items()}
    assert written == {
        "prompt": "  prompt       1+1=",
        "environment": "  environment  c",
        "policy": "  policy 9     d",
    }
    assert next(s for s in Colours()(page).spans if str(s.style) == "rljob.policy").end == page.index("\n  environment")
