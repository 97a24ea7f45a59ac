"""The GPU and the model that plan counts with: their names, and where they are."""

import shutil
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from cli.planned import ON_80_GB, RECIPE, plan
from kubectl_rljob.__main__ import main
from rljob_api.sizing.devices import DEVICES, GIB, device
from web_server import answering


@pytest.mark.parametrize(
    ("gpu", "message"),
    [
        ("many", "neither a size, such as 80Gi, nor one of a100-40g"),
        ("h100-nvl", "did you mean h100-80g? Known are a100-40g"),
        ("h100-96g", "did you mean h100-80g? Known are a100-40g"),
        ("a100", "there are several: a100-40g, a100-80g\n"),
        ("1000", "less than 1 GiB: write a size such as 80Gi\n"),
        ("4090", "less than 1 GiB: write a size such as 80Gi, or rtx4090-24g\n"),
    ],
)
def test_a_gpu_that_nobody_knows_is_refused_with_the_names(
    capsys: pytest.CaptureFixture[str], gpu: str, message: str
) -> None:
    assert plan("--gpu", gpu) == 1
    assert capsys.readouterr().err.startswith(f"error: --gpu {gpu}: {message}")


@pytest.mark.parametrize(
    ("name", "card"),
    [
        ("h200", "h200-141g"),
        ("H100-80GB", "h100-80g"),
        ("RTX 4090", "rtx4090-24g"),
        ("NVIDIA-H100-80GB-HBM3", "h100-80g"),
        ("NVIDIA-A100-SXM4-40GB", "a100-40g"),
    ],
)
def test_a_gpu_is_found_as_its_maker_or_a_nodes_label_names_it(name: str, card: str) -> None:
    assert device(name).bytes == DEVICES[card] * GIB


def test_a_gpu_that_is_neither_a_name_nor_a_size_is_refused() -> None:
    with pytest.raises(ValueError, match=r"neither a size, such as 80Gi, nor one of a100-40g"):
        device("1.2.3")


def test_a_gpu_without_a_model_to_hold_against_it_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "-f", str(RECIPE / "rljob.yaml"), "--gpu", "h100", "--offline"]) == 1
    assert capsys.readouterr().err == "error: --gpu needs --model, without which no memory is estimated\n"


def test_a_device_has_a_little_less_than_its_name_says() -> None:
    for name in DEVICES:
        gigabytes = float(name.rpartition("-")[2].removesuffix("g"))
        assert 0.9 * gigabytes * 1e9 < device(name).bytes < 1.08 * gigabytes * 1e9


class Hub(BaseHTTPRequestHandler):
    """One gated model, whose branch `v2` is not JSON."""

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        pages = {
            "/Qwen/Qwen2.5-7B-Instruct/resolve/main/config.json": (RECIPE / "config.json").read_bytes(),
            "/Qwen/Qwen2.5-7B-Instruct/resolve/v2/config.json": b"<html>",
        }
        allowed = self.headers.get("Authorization") == "Bearer hf_me"
        body = pages.get(self.path, b"")
        self.send_response(200 if body and allowed else 404 if allowed else 401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def out_of(capsys: pytest.CaptureFixture[str], **given: Any) -> str:
    plan("--gpu", "h100-80g", **given)
    return capsys.readouterr().out


def test_a_model_is_a_directory_a_file_or_a_name_of_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(RECIPE / "config.json", tmp_path / "some.json")
    for model in (str(RECIPE / "config.json"), str(tmp_path / "some.json")):
        assert ON_80_GB in out_of(capsys, model=model)
    with answering(Hub) as url:
        monkeypatch.setenv("HF_ENDPOINT", f"{url}/")
        monkeypatch.setenv("HF_TOKEN", "hf_me")
        for name in ("Qwen/Qwen2.5-7B-Instruct", "hf://Qwen/Qwen2.5-7B-Instruct@main"):
            assert ON_80_GB in out_of(capsys, model=name)


def test_a_model_that_is_nowhere_says_what_was_tried(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with answering(Hub) as url:
        monkeypatch.setenv("HF_ENDPOINT", f"{url}/")
        monkeypatch.setenv("HF_TOKEN", "hf_me")
        cases = {"Qwen/Missing": "no such model on the hub", "Qwen/Qwen2.5-7B-Instruct@v2": "is not JSON"}
        for model, message in cases.items():
            assert plan(model=model) == 1
            assert message in capsys.readouterr().err
        monkeypatch.delenv("HF_TOKEN")
        assert plan(model="Qwen/Qwen2.5-7B-Instruct") == 1
        assert "a gated one: set HF_TOKEN" in capsys.readouterr().err
    assert plan(model="Qwen/Qwen2.5-7B-Instruct") == 1
    said = capsys.readouterr().err
    assert "is not reached" in said and "; name a directory of it or its config.json\n" in said
    assert plan(model="nowhere") == 1
    assert capsys.readouterr().err.startswith("error: --model nowhere: no such directory or file")


@pytest.mark.parametrize("endpoint", ["huggingface.co", "http://127.0.0.1:bad", "http://a b"])
def test_an_endpoint_that_is_no_url(
    endpoint: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    assert plan(model="Qwen/Qwen2.5-7B-Instruct") == 1
    assert f"{endpoint} is not reached" in capsys.readouterr().err


def test_a_name_that_is_too_long_for_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert plan(model="m" * 300) == 1
    assert "no such directory or file" in capsys.readouterr().err


def test_the_token_stays_with_the_hub(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """It sends us elsewhere for files, with an address that needs no token; and to new names of models, with one that does."""
    seen = []

    class Storage(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append((self.path, self.headers["Authorization"]))
            target = {"/Qwen/Old/resolve/main/config.json": "/new", "/new": f"{storage}/file"}.get(self.path)
            self.send_response(302 if target else 200)
            if target:
                self.send_header("Location", target)
            self.end_headers()
            self.wfile.write(b"" if target else (RECIPE / "config.json").read_bytes())

        def log_message(self, *_: object) -> None: ...

    with answering(Storage) as hub, answering(Storage) as storage:
        monkeypatch.setenv("HF_ENDPOINT", hub)
        monkeypatch.setenv("HF_TOKEN", "hf_me")
        assert plan(model="Qwen/Old") == 0
    assert seen == [("/Qwen/Old/resolve/main/config.json", "Bearer hf_me"), ("/new", "Bearer hf_me"), ("/file", None)]
