"""What arrives in an object store on loopback: complete directories, whose last file says so, and a job's way back from there."""

import random
from pathlib import Path

import pytest

from rljob_api.spec.common import Source
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.sources import stores, upload
from rljob_trainer.sources.fetch import fetch
from rljob_trainer.sources.upload import ObjectStore, Stopped
from trainer.sources.servers import S3, serving

LARGE = random.Random(1).randbytes(12_000_000)
"""More than one part of a multipart upload."""
FILES = ("megatron/shard", "megatron/empty", "buffer/a b.json", "manifest.json")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    found = tmp_path / "run/global_step_2"
    for name, content in zip(FILES, (LARGE, b"", b"{}", b'{"step": 2}'), strict=True):
        (found / name).parent.mkdir(parents=True, exist_ok=True)
        (found / name).write_bytes(content)
    return found


def store() -> ObjectStore:
    return ObjectStore("spec.checkpoint.upload", "s3://bucket/runs/one")


@pytest.mark.usefixtures("credentials")
def test_a_directory_arrives_with_its_last_file_last_and_comes_back_as_it_was(
    tmp_path: Path, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "BLOCK_BYTES", 4_000_000)
    with serving(S3, {}) as (url, files):
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        found = store()
        found.prove_writable()
        found.copy(directory, "global_step_2", FILES, "manifest.json")
        back = Source(source="s3://bucket/runs/one/global_step_2", path=str(tmp_path / "back"))
        fetch("spec.data.sources[0]", back, lambda there, total: None)
    assert files.written[-1].partition("?")[0] == "bucket/runs/one/global_step_2/manifest.json"
    assert found.moved == sum((directory / name).stat().st_size for name in FILES)
    for name in FILES:
        assert (tmp_path / "back" / name).read_bytes() == (directory / name).read_bytes()


@pytest.mark.usefixtures("credentials")
def test_a_directory_that_is_written_again_is_not_complete_meanwhile(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = "bucket/runs/one/global_step_2/manifest.json"
    with serving(S3, {last: b"of another attempt"}) as (url, files):
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        found = store()
        found.stop()
        with pytest.raises(Stopped):
            found.copy(directory, "global_step_2", FILES, "manifest.json")
        assert last not in files.content
        store().copy(directory, "global_step_2", FILES, "manifest.json")
        assert store().read("global_step_2/manifest.json") == b'{"step": 2}'
        assert store().read("global_step_3/manifest.json") is None


@pytest.mark.usefixtures("credentials")
def test_a_store_that_fails_for_a_while_is_asked_again(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(S3, {}, refuse_writes=2) as (url, files):
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        store().copy(directory, "global_step_2", FILES, "manifest.json")
    assert files.content["bucket/runs/one/global_step_2/megatron/shard"] == LARGE


@pytest.mark.usefixtures("credentials")
def test_a_login_that_may_not_write_is_refused_before_anything_is_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(S3, {}, read_only=True) as (url, _):
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        with pytest.raises(ConfigurationError, match="access is refused") as caught:
            store().prove_writable()
    assert (caught.value.field, caught.value.value) == ("spec.checkpoint.upload", "s3://bucket/runs/one")
    assert "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" in caught.value.fix


def test_a_slower_volume_is_a_store_too(tmp_path: Path, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload, "BLOCK_BYTES", 1_000_000)
    found = ObjectStore("spec.checkpoint.upload", f"file://{tmp_path}/archive/one")
    found.prove_writable()
    found.copy(directory, "global_step_2", FILES, "manifest.json")
    assert (tmp_path / "archive/one/global_step_2/megatron/shard").read_bytes() == LARGE
