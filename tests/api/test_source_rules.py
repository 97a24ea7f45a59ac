"""Rules of model.source and data.sources."""

from typing import Any

import pytest

from api.specs import raw_spec
from rljob_api.rules import validate

DATA = {"name": "data", "mountPath": "/data", "source": {"persistentVolumeClaim": {"claimName": "data"}}}
RUNS = {"name": "runs", "mountPath": "/runs", "source": {"persistentVolumeClaim": {"claimName": "runs"}}}


def fields(*sources: dict[str, Any], model: dict[str, Any] | None = None, **changes: Any) -> list[str]:
    spec = raw_spec(volumes=[RUNS, DATA | changes], checkpoint={"path": "/runs/a"})
    spec["model"] = model or {"path": "/data/model"}
    spec["data"] = spec["data"] | {"sources": list(sources)}
    return [v.field for v in validate(spec, "demo").violations]


@pytest.mark.parametrize(
    "address",
    [
        "hf://datasets/openai/gsm8k@REV",
        "hf://datasets/openai/gsm8k/main",
        "s3://bucket/prefix",
        "gs://bucket/prefix",
        "https://host/file.jsonl",
        f"https://host/file.jsonl#sha256={'a' * 64}",
        "file:///mnt/shared/set",
    ],
)
def test_addresses_of_stores_are_taken(address: str) -> None:
    assert fields({"source": address, "path": "/data/set"}) == []


@pytest.mark.parametrize(
    "address",
    [
        "openai/gsm8k",
        "hf://gsm8k",
        "hf://datasets/gsm8k",
        "s3://bucket",
        "file://set",
        "https://host/",
        "ftp://host/file",
        "https://me:password@host/file",
        "https://host/file#sha256=abc",
        "s3://bucket/prefix#part",
    ],
)
def test_other_addresses_are_refused(address: str) -> None:
    assert fields({"source": address, "path": "/data/set"}) == ["spec.data.sources[0].source"]


def test_files_are_fetched_to_writable_volumes() -> None:
    source = {"source": "s3://bucket/prefix", "path": "/data/set"}
    assert fields(source, readOnly=True) == ["spec.data.sources[0].path"]
    assert fields(source | {"path": "/elsewhere"}) == ["spec.data.sources[0].path"]
    assert fields(model={"path": "/data/m", "source": "hf://org/m"}, readOnly=True) == ["spec.model.path"]


@pytest.mark.parametrize("path", ["/data/model", "/data/model/set", "/data"])
def test_each_source_has_a_directory_of_its_own(path: str) -> None:
    model = {"path": "/data/model", "source": "hf://org/model"}
    assert fields({"source": "s3://bucket/a", "path": path}, model=model) == ["spec.data.sources[0].path"]


def test_a_password_is_not_repeated() -> None:
    spec = raw_spec()
    spec["data"] = spec["data"] | {"sources": [{"source": "https://me:password@host/file", "path": "/data/set"}]}
    (violation,) = validate(spec, "demo").violations
    assert "password@" not in str(violation)


@pytest.mark.parametrize(
    ("page", "address"),
    [
        ("https://huggingface.co/Qwen/Qwen3-8B", "hf://Qwen/Qwen3-8B"),
        ("https://hf.co/Qwen/Qwen3-8B/tree/main", "hf://Qwen/Qwen3-8B@main"),
        ("https://www.huggingface.co/datasets/openai/gsm8k/blob/v1/a.parquet", "hf://datasets/openai/gsm8k@v1"),
    ],
)
def test_a_page_of_the_hub_is_no_file(page: str, address: str) -> None:
    spec = raw_spec(volumes=[DATA], model={"path": "/data/m", "source": page})
    (violation,) = validate(spec, "demo").violations
    assert violation.field == "spec.model.source" and violation.fix == f"write {address}"
    file = "https://huggingface.co/Qwen/Qwen3-8B/resolve/main/config.json"
    assert fields({"source": file, "path": "/data/set"}) == []


@pytest.mark.parametrize("path", ["/data/m", "/data/m/run"])
def test_the_run_does_not_write_into_what_was_fetched(path: str) -> None:
    spec = raw_spec(volumes=[DATA], model={"path": "/data/m", "source": "hf://org/m"}, checkpoint={"path": path})
    assert [v.field for v in validate(spec, "demo").violations] == ["spec.model.path"]
