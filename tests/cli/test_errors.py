"""What a user reads when the cluster refuses: kind, name, namespace and the next command, never a traceback."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from cli.conftest import Rljob
from cli.fake_api import FakeApi
from cli.makers import make_job
from kubectl_rljob.__main__ import main
from kubectl_rljob.cluster import ClusterClient
from kubectl_rljob.errors import UserError

SOURCE = str(Path(__file__).parents[2] / "operator")


def test_a_job_that_does_not_exist(api: FakeApi, rljob: Rljob) -> None:
    screen = rljob("status", "nope")
    assert (screen.code, screen.out) == (1, "")
    assert screen.err == "error: rljob nope in namespace research: not found\nnext:  kubectl rljob list -A\n"


def test_the_next_command_stays_in_the_cluster_that_was_chosen(api: FakeApi, rljob: Rljob, tmp_path: Path) -> None:
    config = tmp_path / "my kubeconfig"
    config.write_text((tmp_path / "kubeconfig").read_text())
    screen = rljob("status", "nope", "--context", "elsewhere", "--kubeconfig", str(config))
    assert screen.err == (
        "error: rljob nope in namespace default: not found\n"
        f"next:  kubectl rljob list -A --context elsewhere --kubeconfig '{config}'\n"
    )


def test_a_status_of_a_later_release(api: FakeApi, rljob: Rljob) -> None:
    api.add(make_job(state="Hibernating"))
    screen = rljob("list")
    assert screen.code == 1
    assert screen.err.startswith("error: rljob demo in namespace research: status.state: must be one of Pending, ")
    assert screen.err.endswith(
        ": install the plugin of the operator's release\nnext:  kubectl get rljob demo -n research -o yaml\n"
    )
    assert rljob("list", "-o", "json").code == 0


def test_a_cluster_without_the_crd(api: FakeApi, rljob: Rljob) -> None:
    api.installed = False
    assert rljob("list").err == (
        "error: rljobs in namespace research: this cluster does not know the kind RLJob (rljob.dev/v1alpha1)\n"
        "next:  kubectl get crd rljobs.rljob.dev\n"
    )


@pytest.mark.parametrize(
    ("status", "said", "then"),
    [
        (401, "the cluster does not accept your credentials", "kubectl auth whoami"),
        (403, 'User "eve" cannot get', "kubectl auth can-i --list -n research"),
    ],
)
def test_missing_rights(api: FakeApi, rljob: Rljob, status: int, said: str, then: str) -> None:
    api.refuse = (status, 'User "eve" cannot get')
    screen = rljob("status", "demo")
    assert screen.code == 1
    assert screen.err == f"error: rljob demo in namespace research: {said}\nnext:  {then}\n"


def test_any_other_answer_is_passed_on_with_its_number(api: FakeApi, rljob: Rljob) -> None:
    api.refuse = (500, "etcd is away")
    assert rljob("status", "demo").err == "error: rljob demo in namespace research: etcd is away (HTTP 500)\n"


def test_an_object_that_was_re_created_meanwhile_is_not_touched(tmp_path: Path, api: FakeApi) -> None:
    api.add(make_job())
    cluster = ClusterClient.connect(str(tmp_path / "kubeconfig"), None, None)
    seen = cluster.job("demo")
    successor = make_job()
    successor["metadata"]["uid"] = "uid-2"
    api.add(successor)
    with pytest.raises(UserError, match="rljob demo in namespace research: was changed or re-created meanwhile"):
        cluster.annotate(seen, "a", "b")
    assert successor["metadata"]["annotations"] == {}


def test_an_unreachable_cluster(tmp_path: Path, api: FakeApi, rljob: Rljob) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        kubeconfig = tmp_path / "kubeconfig"
        lines = [f"    server: {url}" if "server:" in line else line for line in kubeconfig.read_text().split("\n")]
        kubeconfig.write_text("\n".join(lines))
        screen = rljob("list")
    assert screen.code == 1
    assert screen.err.startswith(f"error: rljobs in namespace research: cannot reach {url}: ")
    assert screen.err.endswith("Connection refused\nnext:  kubectl cluster-info\n")


def test_a_kubeconfig_that_does_not_exist(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = tmp_path / "nothing"
    assert main(["list", "--kubeconfig", str(missing)]) == 1
    assert capsys.readouterr().err.startswith(f"error: kubeconfig: no such file: {missing}\n")


def test_an_empty_variable_for_the_kubeconfig_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main(["list"]) == 1
    assert capsys.readouterr().err.startswith("error: kubeconfig: no such file: ~/.kube/config\n")


def test_a_kubeconfig_that_is_not_yaml(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "broken").write_text("clusters: [")
    assert main(["list", "--kubeconfig", str(tmp_path / "broken")]) == 1
    assert capsys.readouterr().err.startswith("error: kubeconfig: while parsing")


def test_a_kubeconfig_whose_certificate_is_cut_off(tmp_path: Path, api: FakeApi, rljob: Rljob) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        kubeconfig.read_text().replace("server: http:", "certificate-authority-data: abcde\n    server: https:")
    )
    screen = rljob("list")
    assert screen.code == 1
    assert screen.err.startswith("error: kubeconfig: Invalid base64") and screen.err.endswith(
        "kubectl config get-contexts\n"
    )


def test_a_kubeconfig_without_a_current_context_works_with_the_flag(tmp_path: Path, api: FakeApi, rljob: Rljob) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(kubeconfig.read_text().replace("current-context: here", "current-context: ''"))
    assert rljob("list", "--context", "here").code == 0
    assert rljob("list").code == 1


def test_a_reader_that_has_seen_enough_ends_the_plugin_quietly(tmp_path: Path) -> None:
    example = Path(__file__).parents[2] / "examples/arithmetic/rljob.yaml"
    program = [sys.executable, "-m", "kubectl_rljob", "plan", "-f", str(example)]
    with subprocess.Popen(
        program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": SOURCE}
    ) as plugin:
        assert plugin.stdout is not None and plugin.stderr is not None
        plugin.stdout.close()
        assert plugin.stderr.read() == b""
        assert plugin.wait(30) == 0


def test_a_context_that_does_not_exist(api: FakeApi, rljob: Rljob) -> None:
    screen = rljob("list", "--context", "mars")
    assert screen.code == 1
    assert "mars" in screen.err
    assert screen.err.endswith("next:  kubectl config get-contexts\n")


@pytest.mark.parametrize(
    "argv", [(), ("dance",), ("status",), ("resume", "demo", "--from-step", "many"), ("list", "-o", "xml")]
)
def test_a_wrong_command_line_exits_with_2(api: FakeApi, rljob: Rljob, argv: tuple[str, ...]) -> None:
    assert rljob(*argv).code == 2


@pytest.mark.parametrize(
    ("word", "instead"),
    [
        ("get", "`kubectl rljob list`"),
        ("apply", "`kubectl apply --server-side -f FILE`"),
        ("help", "`kubectl rljob --help`"),
    ],
)
def test_a_word_of_kubectl_that_is_no_verb_names_the_command_to_use(rljob: Rljob, word: str, instead: str) -> None:
    screen = rljob(word, "demo")
    assert screen.code == 2
    assert f"There is no verb {word}: {instead}" in screen.err


def test_a_job_may_be_named_with_its_kind_as_kubectl_prints_it(api: FakeApi, rljob: Rljob) -> None:
    api.add(make_job())
    plain = rljob("status", "demo")
    assert plain.code == 0
    assert rljob("status", "rljob/demo") == rljob("status", "rljob.rljob.dev/demo") == plain
    assert "rljob pod/demo in namespace research" in rljob("status", "pod/demo").err


def test_the_version_is_printed_by_verb_and_flag(rljob: Rljob) -> None:
    assert rljob("--version") == rljob("version")


@pytest.mark.parametrize("text", ["hello", "- a", "contexts: foo\nclusters: 3\nusers: [1]\ncurrent-context: x\n"])
def test_a_kubeconfig_of_another_form(api: FakeApi, rljob: Rljob, tmp_path: Path, text: str) -> None:
    (tmp_path / "kubeconfig").write_text(text)
    screen = rljob("list")
    assert screen.code == 1 and f"{tmp_path / 'kubeconfig'} is not of kind Config" in screen.err


def test_lists_that_hold_nothing_or_are_none(api: FakeApi, rljob: Rljob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClusterClient, "_json", lambda *_, **__: {"items": None})
    assert rljob("list").err == "No rljobs found in namespace research.\n"
    monkeypatch.setattr(ClusterClient, "_json", lambda *_, **__: {"login": "here"})
    assert rljob("list").err.startswith("error: rljobs in namespace research: the answer is not a list\n")


def test_annotations_that_are_null_are_none(api: FakeApi, rljob: Rljob) -> None:
    job = make_job(state="Running")
    job["metadata"]["annotations"] = None
    api.add(job)
    assert rljob("status", "demo").code == 0
