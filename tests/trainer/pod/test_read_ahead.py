"""A pod that stands by brings the files of the models into the page cache."""

import ctypes
import mmap
import os
import threading
from pathlib import Path

import pytest

from api.specs import make_spec
from rljob_api.protocol import Member
from rljob_api.spec import RLJobSpec
from rljob_trainer.pod.read_ahead import CHUNK, model_directories, read
from trainer.pod.gang import Gang, wait_for
from trainer.test_model_files import written

SIZE = 3 * CHUNK
GOES_ON = threading.Event()


def is_cached(file: Path) -> bool:
    """Whether the page cache has all of the file: mincore(2) says it without reading."""
    with file.open("r+b") as stream, mmap.mmap(stream.fileno(), 0) as mapped:
        pages = (ctypes.c_ubyte * -(-len(mapped) // mmap.PAGESIZE))()
        first = ctypes.c_char.from_buffer(mapped)
        failed = ctypes.CDLL(None, use_errno=True).mincore(ctypes.byref(first), ctypes.c_size_t(len(mapped)), pages)
        del first  # mapped could not be closed otherwise
        assert not failed, os.strerror(ctypes.get_errno())
    return all(page & 1 for page in pages)


def cold(file: Path, size: int = SIZE) -> Path:
    """A file of this size that is on the disk alone."""
    with file.open("wb") as stream:
        stream.write(os.urandom(size))
        os.fsync(stream.fileno())
    drop(file)
    return file


def drop(file: Path) -> None:
    """From the page cache."""
    descriptor = os.open(file, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)
    if is_cached(file):
        pytest.skip("this file system keeps its files in memory")


def test_the_weights_are_in_the_page_cache_afterwards_and_no_other_file(tmp_path: Path) -> None:
    weights, other = cold(tmp_path / "model.safetensors"), cold(tmp_path / "consolidated.pth")
    assert read([tmp_path], 10 * SIZE, GOES_ON) == SIZE
    assert is_cached(weights) and not is_cached(other)


def test_only_files_that_the_index_names_are_read(tmp_path: Path) -> None:
    named = sum(file.stat().st_size for file in written(tmp_path).glob("model-*.safetensors"))
    cold(tmp_path / "consolidated.safetensors")
    assert read([tmp_path], 10 * SIZE, GOES_ON) == named


@pytest.mark.parametrize("limit", [0, 1, CHUNK + 1, 2 * CHUNK, 4 * CHUNK])
def test_no_more_is_read_than_the_memory_allows(tmp_path: Path, limit: int) -> None:
    for name in ("a", "b"):
        cold(tmp_path / f"{name}.safetensors", 2 * CHUNK)
    assert read([tmp_path], limit, GOES_ON) == limit


def test_a_pod_that_becomes_a_member_stops_reading(tmp_path: Path) -> None:
    stopped = threading.Event()
    stopped.set()
    cold(tmp_path / "model.safetensors")
    assert read([tmp_path], 10 * SIZE, stopped) == 0


MODEL = {"path": "/models/policy"}


@pytest.mark.parametrize(
    ("sections", "directories"),
    [
        ({"model": MODEL}, ["/models/policy"]),
        ({"model": MODEL | {"megatronCheckpoint": "/models/checkpoint"}}, []),
        ({"model": MODEL, "reference": {"path": "/models/reference"}}, ["/models/policy", "/models/reference"]),
        ({"model": MODEL, "reference": {"path": "/models/policy"}}, ["/models/policy"]),
        ({"model": MODEL, "reference": {"path": "/models/reference", "processesPerNode": 1}}, ["/models/policy"]),
        ({"model": MODEL, "critic": {"path": "/models/critic"}}, ["/models/policy", "/models/critic"]),
    ],
)
def test_all_models_on_the_ranks_of_the_trainer_are_read_once(
    sections: dict[str, object], directories: list[str]
) -> None:
    kl = {"algorithm": {"advantage": "gae" if "critic" in sections else "grpo", "kl": {"coefficient": 0.1}}}
    spec = RLJobSpec.model_validate(make_spec(**sections).dump() | kl)
    assert [str(path) for path in model_directories(spec)] == directories


def test_a_launcher_that_stands_by_reads_the_model_and_says_so(
    solo: Gang, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = cold(tmp_path / "model.safetensors")
    own = RLJobSpec.model_validate(solo.spec.dump() | {"model": {"path": str(tmp_path)}})
    monkeypatch.setattr(solo, "spec", own)  # the tests share the gang
    another = Member(pod="job-trainer-9", pod_uid="uid", boot_id="another", node_rank=0, address="127.0.0.1")
    assert not is_cached(weights)
    solo.tell(solo.attempt + 1, members=[another])
    wait_for("the model in the page cache", lambda: is_cached(weights))
