"""Who is answered, with what: the page, its modules, and runs as JSON, all read-only."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from rljob_api import names
from rljob_trainer.viewer.server import FILES, HEADERS, PAGE
from trainer.viewer.serving import make_run, png, served


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "secret.txt").write_text("secret")
    with served(make_run(tmp_path / "one"), make_run(tmp_path / "two")) as url:
        yield url


def ask(address: str, path: str, method: str = "GET", host: str = "") -> tuple[int, dict[str, str], str]:
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=60)
    connection.request(method, path, headers={"Host": host} if host else {})
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, dict(answer.getheaders()), body


def test_the_page_and_its_modules_are_served_with_a_policy_that_allows_nothing_else(address: str) -> None:
    for path in ("/", "/index.html?x", *FILES):
        status, headers, body = ask(address, path)
        assert status == 200 and body and headers.items() >= HEADERS.items()
    policy = dict(rule.split(" ", 1) for rule in HEADERS["Content-Security-Policy"].split("; "))
    assert policy["default-src"] == "'none'" and policy["script-src"] == "'self'" == policy["connect-src"]
    assert not any("unsafe" in rule or "http" in rule for rule in policy.values())


def test_the_page_loads_nothing_from_elsewhere_and_makes_no_markup_of_texts() -> None:
    for file in PAGE.iterdir():
        text = file.read_text().replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", text), file
        assert " style=" not in text and "<script>" not in text, "the policy forbids it"


def test_runs_their_metrics_and_samples_are_json(address: str) -> None:
    names = [run["name"] for run in json.loads(ask(address, "/api/runs")[2])]
    assert names == ["one", "two"]
    metrics = json.loads(ask(address, "/api/runs/1/metrics")[2])
    assert metrics["steps"] == [1, 2, 3, 4] and metrics["values"]["reward/mean"] == [0.1, 0.2, 0.3, 0.4]
    status, headers, body = ask(address, "/api/runs/0/samples/4")
    assert (status, headers["Content-Type"]) == (200, "application/json; charset=utf-8")
    assert [sample["reward"] for sample in json.loads(body)] == [0.25, 0.75]
    assert [*json.loads(ask(address, "/api/runs/0/spans/4")[2])[0]] == ["resourceSpans"]


def test_an_image_is_one_whatever_its_file_holds(address: str, tmp_path: Path) -> None:
    path = "/api/runs/0/samples/4/images/0"
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=60)
    connection.request("GET", path)
    answer = connection.getresponse()
    assert (answer.status, answer.getheader("Content-Type"), answer.read()) == (200, "image/png", png(32, 128))
    names.sample_image(tmp_path / "one", 4, 0).write_text("<script>document.title='owned'</script>")
    status, _, body = ask(address, path)
    assert status == 404 and json.loads(body) == {"error": "step_4_0.png is no image"}


ABSENT = """/api/runs/2/metrics /api/runs/0/spans/9 /api/runs/0/spans /api/runs/0/samples/4/images/1 /api/runs/0/samples/4/images/x
/api/runs/0/samples/4/images/0/..
/api/runs/0/samples/3 /api/runs/-1/metrics /api/runs/0/samples/4/.. /../secret.txt /%2e%2e/secret.txt
/api/runs/0/samples/../../secret.txt /server.py /page //etc/passwd"""


@pytest.mark.parametrize("path", ABSENT.split())
def test_nothing_else_is_there(address: str, path: str) -> None:
    status, headers, body = ask(address, path)
    assert status == 404 and set(json.loads(body)) == {"error"} and "Content-Security-Policy" in headers


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_can_be_changed(address: str, method: str) -> None:
    assert ask(address, "/api/runs", method)[0] == 501


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "localhost:x"])
def test_another_sites_name_is_not_answered_though_it_leads_here(address: str, host: str) -> None:
    assert ask(address, "/api/runs/0/metrics", host=host)[0] == 403
    assert ask(address, "/api/runs/0/metrics", host="localhost:6007")[0] == 200, "as a forwarded port is called"


@contextmanager
def command(*arguments: object) -> "Iterator[subprocess.Popen[str]]":
    """The command, which Ctrl-C ends also where the tests run in the background. It is killed in the end."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    started = [sys.executable, "-m", "rljob_trainer", "view", *map(str, arguments)]
    process = subprocess.Popen(
        started,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def test_the_command_says_where_the_page_is_and_ends_with_ctrl_c(tmp_path: Path) -> None:
    with command(make_run(tmp_path / "run"), "--port", 0) as process:
        assert process.stdout
        line = process.stdout.readline()
        assert (found := re.fullmatch(r"(http://127\.0\.0\.1:\d+)/ until you press Ctrl-C\n", line))
        assert ask(found[1], "/api/runs")[0] == 200
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0 and process.communicate()[1] == ""


def test_a_run_that_is_not_there_and_a_port_that_is_taken_are_said(tmp_path: Path) -> None:
    with command(tmp_path / "nowhere") as process:
        assert "there is no such directory; name spec.checkpoint.path of a run" in process.communicate(timeout=60)[1]
    with command(tmp_path / "nowhere", "--compare", tmp_path) as process:
        assert process.communicate(timeout=60)[1].count("spec.checkpoint.path") == 2
    run = make_run(tmp_path / "run")
    with command(tmp_path) as process:
        assert f"holds no metrics.jsonl; did you mean {run}?" in process.communicate(timeout=60)[1]
    assert process.returncode == 1
    with served(run) as taken, command(run, "--port", urlsplit(taken).port) as process:
        assert (
            "cannot be used: Address already in use; name another one with --port" in process.communicate(timeout=60)[1]
        )
    assert process.returncode == 1
