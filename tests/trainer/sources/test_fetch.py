"""What arrives on a volume, from servers on loopback: whole, resumed, once, held to digests."""

import hashlib
import random
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rljob_api.spec.common import Source
from rljob_api.spec.model import MODEL_FILES
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.sources import fetch as fetching
from rljob_trainer.sources.fetch import bytes_in, fetch
from rljob_trainer.sources.record import is_fetched, read_record
from rljob_trainer.sources.stores import Listing, RemoteFile
from trainer.sources.servers import S3, Handler, Hub, serving

WEIGHTS = random.Random(0).randbytes(105_000)
MODEL = {
    "config.json": b"{}",
    "model.safetensors": WEIGHTS,
    "pytorch_model.bin": b"b" * 5000,
    "original/params.json": b"{}",
    "consolidated.safetensors": b"c" * 5000,
    "chat/template.jinja": b"{{ messages }}",
}


def fetched(source: Source) -> list[tuple[int, int]]:
    """What was said of its progress."""
    said: list[tuple[int, int]] = []
    fetch("spec.model", source, lambda there, total: said.append((there, total)))
    return said


def content(directory: Path) -> dict[str, bytes]:
    """Files of the source, by name."""
    found = (f for f in directory.rglob("*") if f.is_file() and ".rljob" not in f.parts)
    return {str(f.relative_to(directory)): f.read_bytes() for f in found}


def test_a_model_of_the_hub_arrives_without_the_formats_that_nothing_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Source(source="hf://org/thing@main", path=str(tmp_path / "m"), files=MODEL_FILES)
    with serving(Hub, MODEL, secret="hf_me") as (url, _):
        monkeypatch.setenv("HF_ENDPOINT", url)
        monkeypatch.setenv("HF_TOKEN", "hf_me")
        said = fetched(source)
    wanted = {name: MODEL[name] for name in ("config.json", "model.safetensors", "chat/template.jinja")}
    total = sum(len(text) for text in wanted.values())
    assert content(tmp_path / "m") == wanted
    assert said[-1] == (total, total) and len(said) > 10
    record = read_record(tmp_path / "m")
    assert record and record.revision == Hub.COMMIT
    assert {f.name: f.sha256 for f in record.files} == {n: hashlib.sha256(c).hexdigest() for n, c in wanted.items()}


def test_part_of_a_data_set_arrives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(Hub, {"main/train.parquet": b"rows", "main/README.md": b"#", "socratic/train.parquet": b"s"}) as (
        url,
        _,
    ):
        monkeypatch.setenv("HF_ENDPOINT", url)
        fetched(Source(source="hf://datasets/org/thing/main", path=str(tmp_path / "d"), files=["*", "!*.md"]))
    assert content(tmp_path / "d") == {"train.parquet": b"rows"}


@pytest.mark.usefixtures("credentials")
def test_a_directory_of_an_object_store_arrives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(S3, {f"bucket/models/m/{n}": c for n, c in MODEL.items()}, secret="AKIATEST") as (url, _):
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        fetched(Source(source="s3://bucket/models/m", path=str(tmp_path / "m")))
        fetched(Source(source="s3://bucket/models/m/config.json", path=str(tmp_path / "one")))
    assert content(tmp_path / "m") == MODEL
    assert content(tmp_path / "one") == {"config.json": b"{}"}


def test_what_is_there_needs_no_network(tmp_path: Path) -> None:
    with serving(Handler, MODEL) as (url, files):
        source = Source(source=f"{url}/config.json", path=str(tmp_path / "m"))
        fetched(source)
    assert is_fetched(source) and fetched(source) == [] and len(files.requests) == 2
    (tmp_path / "m/config.json").unlink()
    assert not is_fetched(source)


class Killed(Exception):
    """Stands for the end of the process."""


def interrupted(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    """Begun, and ended after 60 000 bytes."""

    def until_then(there: int, _: int) -> None:
        if there >= 60_000:
            raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(fetching, "TRIES", 1)
        fetch("spec.model", source, until_then)
    assert not is_fetched(source) and content(Path(source.path)) == {}


@pytest.mark.parametrize("ranges", [True, False])
def test_what_was_begun_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranges: bool) -> None:
    digest = hashlib.sha256(WEIGHTS).hexdigest()
    with serving(Handler, MODEL, ranges=ranges) as (url, _):
        source = Source(source=f"{url}/model.safetensors#sha256={digest}", path=str(tmp_path / "m"))
        interrupted(source, monkeypatch)
        said = fetched(source)
    assert content(tmp_path / "m") == {"model.safetensors": WEIGHTS}
    assert said[0][0] == 60_000 and not list((tmp_path / "m/.rljob").glob("partial/*"))


def test_only_the_rest_of_a_large_file_is_read_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(Hub, {"model.safetensors": WEIGHTS}) as (url, files):
        monkeypatch.setenv("HF_ENDPOINT", url)
        source = Source(source="hf://org/thing", path=str(tmp_path / "m"))
        interrupted(source, monkeypatch)
        before = files.served
        fetched(source)
        assert files.served - before == len(WEIGHTS) - 60_000
    assert content(tmp_path / "m") == {"model.safetensors": WEIGHTS}


def test_bytes_of_another_version_are_not_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = bytes(reversed(WEIGHTS))
    with serving(Hub, {"model.safetensors": WEIGHTS}) as (url, files):
        monkeypatch.setenv("HF_ENDPOINT", url)
        source = Source(source="hf://org/thing", path=str(tmp_path / "m"))
        interrupted(source, monkeypatch)
        files.content["model.safetensors"] = other
        fetched(source)
    assert content(tmp_path / "m") == {"model.safetensors": other}


def test_bytes_that_a_power_cut_left_are_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(Hub, {"model.safetensors": WEIGHTS}) as (url, _):
        monkeypatch.setenv("HF_ENDPOINT", url)
        source = Source(source="hf://org/thing", path=str(tmp_path / "m"))
        interrupted(source, monkeypatch)
        (partial,) = (tmp_path / "m/.rljob/partial").glob("*")
        partial.write_bytes(bytes(partial.stat().st_size))
        fetched(source)
    assert content(tmp_path / "m") == {"model.safetensors": WEIGHTS}


def test_bytes_with_another_digest_never_count(tmp_path: Path) -> None:
    with serving(Handler, MODEL) as (url, _):
        source = Source(source=f"{url}/config.json#sha256={'0' * 64}", path=str(tmp_path / "m"))
        with pytest.raises(OSError, match="another digest"):
            fetched(source)
    assert not is_fetched(source) and content(tmp_path / "m") == {}


def test_two_jobs_fetch_a_source_once(tmp_path: Path) -> None:
    with serving(Handler, MODEL) as (url, files), ThreadPoolExecutor() as threads:
        source = Source(source=f"{url}/model.safetensors", path=str(tmp_path / "m"))
        for each in [threads.submit(fetched, source) for _ in range(4)]:
            each.result()
        gets = [r for r in files.requests if r == "/model.safetensors"]
    assert len(gets) == 2 and content(tmp_path / "m") == {"model.safetensors": WEIGHTS}


def test_all_files_of_a_source_serve_those_who_want_some_and_not_the_reverse(tmp_path: Path) -> None:
    with serving(Handler, MODEL) as (url, files):
        address, path = f"{url}/config.json", str(tmp_path / "m")
        fetched(Source(source=address, path=path))
        asked = len(files.requests)
        some = Source(source=address, path=path, files=MODEL_FILES)
        assert fetched(some) == [] and is_fetched(some) and len(files.requests) == asked
        fetched(Source(source=address, path=str(tmp_path / "some"), files=["*.json"]))
        assert "*.json" in refusal(Source(source=address, path=str(tmp_path / "some"))).rule


def test_a_copy_of_a_volume_is_a_source(tmp_path: Path) -> None:
    with serving(Handler, MODEL) as (url, _):
        fetched(Source(source=f"{url}/config.json", path=str(tmp_path / "a")))
    fetched(Source(source=f"file://{tmp_path}/a", path=str(tmp_path / "b")))
    assert content(tmp_path / "b") == {"config.json": b"{}"}


def refusal(source: Source) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as raised:
        fetched(source)
    return raised.value


def test_directories_of_others_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("notes")
    refused = refusal(Source(source="https://host/file", path=str(tmp_path)))
    assert refused.field == "spec.model.path" and "mine" in refused.rule


def test_a_directory_holds_one_source(tmp_path: Path) -> None:
    with serving(Handler, MODEL) as (url, _):
        fetched(Source(source=f"{url}/config.json", path=str(tmp_path / "m")))
        refused = refusal(Source(source=f"{url}/model.safetensors", path=str(tmp_path / "m")))
    assert f"{url}/config.json" in refused.rule and content(tmp_path / "m") == {"config.json": b"{}"}


@pytest.mark.parametrize("address", ["hf://org/none", "hf://org/thing@missing", "hf://org/thing/nowhere"])
def test_what_the_hub_lacks_is_said_with_the_field(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(Hub, MODEL) as (url, _):
        monkeypatch.setenv("HF_ENDPOINT", url)
        refused = refusal(Source(source=address, path=str(tmp_path / "m")))
    assert (refused.field, refused.value) == ("spec.model.source", address) and "nothing is found" in refused.rule


def test_patterns_that_match_nothing_are_said(tmp_path: Path) -> None:
    with serving(Handler, MODEL) as (url, _):
        refused = refusal(Source(source=f"{url}/config.json", path=str(tmp_path / "m"), files=["*.parquet"]))
    assert "none of its 1 files matches" in refused.rule


@pytest.mark.usefixtures("credentials")
@pytest.mark.parametrize(
    ("kind", "address", "secret"),
    [(Hub, "hf://org/thing", "HF_TOKEN"), (S3, "s3://bucket/a", "AWS_ACCESS_KEY_ID"), (Handler, "web", "readable")],
)
def test_a_refused_login_says_what_to_put_into_the_secret(
    kind: type[Handler], address: str, secret: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(kind, MODEL, secret="nobody has it") as (url, _):
        monkeypatch.setenv("HF_ENDPOINT", url)
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        where = f"{url}/config.json" if address == "web" else address
        refused = refusal(Source(source=where, path=str(tmp_path / "m")))
    assert "access is refused" in refused.rule and secret in refused.fix


def test_a_volume_without_room_is_said_before_anything_arrives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=100_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with serving(Handler, MODEL) as (url, files):
        refused = refusal(Source(source=f"{url}/model.safetensors", path=str(tmp_path / "m")))
        assert files.served <= 105_000 and "are free" in refused.rule


def test_a_store_that_is_away_is_no_mistake_of_the_author(tmp_path: Path) -> None:
    with serving(Handler, MODEL) as (url, _):
        pass
    with pytest.raises(OSError, match="Connection refused"):
        fetched(Source(source=f"{url}/config.json", path=str(tmp_path / "m")))


def test_a_connection_that_breaks_is_made_again(tmp_path: Path) -> None:
    with serving(Handler, MODEL, fail_after=170_000) as (url, files):
        said = fetched(Source(source=f"{url}/model.safetensors", path=str(tmp_path / "m")))
    assert len(files.requests) == 3
    assert content(tmp_path / "m") == {"model.safetensors": WEIGHTS} and said[-1] == (105_000, 105_000)


def test_who_waits_for_a_file_does_not_fail_when_it_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Complete files are moved out of the directory while another process adds up what lies there."""
    (tmp_path / "there").write_bytes(b"abc")
    monkeypatch.setattr(Path, "glob", lambda self, pattern: iter([self / "moved", self / "there"]))
    assert bytes_in(tmp_path) == 3


def test_a_file_that_cannot_be_had_ends_the_fetch_before_all_others_have_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = []

    def read(file: RemoteFile, _: int) -> Iterator[bytes]:
        begun.append(file.name)
        if file.name == "0":
            raise ConfigurationError("spec.model.source", "s3://b/d", "access is refused", "ask for it")
        time.sleep(0.1)
        yield b"x"

    files = tuple(RemoteFile(str(i), str(i), 1) for i in range(40))
    monkeypatch.setattr(fetching, "list_files", lambda source: Listing(read, "", files))
    with pytest.raises(ConfigurationError, match="access is refused"):
        fetched(Source(source="s3://b/d", path=str(tmp_path / "d")))
    assert len(begun) < 20
