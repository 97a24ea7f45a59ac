"""spec.checkpoint.resumeFrom, and rollout buffers that are saved again."""

import json
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

from api.specs import make_spec
from rljob_api import names
from rljob_api.spec import RLJobSpec
from rljob_trainer.checkpoint.lineage import trained_as
from rljob_trainer.checkpoint.manifest import read_manifests
from rljob_trainer.failure import ConfigurationError, PeerLost
from trainer.checkpoint.saving import open_store, save, write_buffer
from trainer.checkpoint.test_store import saved, steps


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """Checkpoints 2 and 4 of another job."""
    saved(tmp_path / "other", 7, 2, 4, job_uid="other")
    return tmp_path / "other"


def refused(root: Path, source: Path, **changes) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as caught:
        open_store(root, 1, source=source, **changes)
    return caught.value


@pytest.mark.parametrize("slash", ["", "/"])
def test_the_first_attempt_starts_from_the_named_one_whatever_is_newer_there(tmp_path, other, slash):
    store = open_store(tmp_path / "own", 1, source=Path(f"{names.step_dir(other, 2)}{slash}"))
    assert (store.start.directory, store.start.manifest.data["consumed"]) == (names.step_dir(other, 2), 2)
    assert steps(store) == []


def test_it_is_used_again_until_there_is_a_checkpoint_of_the_jobs_own(tmp_path, other):
    source = names.step_dir(other, 2)
    open_store(tmp_path / "own", 1, source=source)
    second = open_store(tmp_path / "own", 2, source=source)
    assert second.start.directory == source
    save(second, 3)
    third = open_store(tmp_path / "own", 3, source=source)
    assert (third.start.directory, steps(third)) == (names.step_dir(tmp_path / "own", 3), [3])


def test_what_another_job_left_in_the_path_is_passed_over_and_gives_way(tmp_path, other):
    saved(tmp_path / "own", 1, 8, job_uid="before")
    store = open_store(tmp_path / "own", 1, source=names.step_dir(other, 2))
    assert (store.start.manifest.step, steps(store)) == (2, [])
    save(store, 3)
    assert [m.step for m in read_manifests(tmp_path / "own")] == [3]


def test_one_of_the_paths_own_is_gone_back_to(tmp_path):
    saved(tmp_path, 1, 2, 4, job_uid="before")
    store = open_store(tmp_path, 1, source=names.step_dir(tmp_path, 2))
    assert (store.start.manifest.step, steps(store)) == (2, [2])


def test_a_request_for_a_step_has_precedence(tmp_path, other):
    saved(tmp_path / "own", 1, 6, source=names.step_dir(other, 4))
    assert open_store(tmp_path / "own", 2, step=0, source=names.step_dir(other, 4)).start is None


def test_it_satisfies_required(tmp_path, other):
    assert open_store(tmp_path / "own", 1, policy="required", source=names.step_dir(other, 4)).start


def test_what_is_no_checkpoint_is_refused_with_what_it_is(tmp_path, other):
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    half = tmp_path / "global_step_9"
    half.mkdir()
    unnamed = copytree(names.step_dir(other, 4), tmp_path / "global_step_4.tmp-7")
    for source, words in {
        tmp_path / "nowhere": "is not a directory that the trainer can see",
        model: "is a Hugging Face model.*set it as spec.model.path",
        half: "is not complete: it has no manifest.json",
        unnamed: "is not complete: it was still being written",
        other: "is a directory of checkpoints.*global_step_2, global_step_4",
        names.step_dir(other, 4) / "megatron": "lies inside a checkpoint; name its directory global_step_4",
        other / "fence": "is not a checkpoint of rljob",
    }.items():
        error = refused(tmp_path / "own", source)
        assert error.field == "spec.checkpoint.resumeFrom"
        with pytest.raises(ConfigurationError, match=words):
            raise error


def test_torn_foreign_and_contradictory_ones_are_refused(tmp_path, other):
    assert "another model" in refused(tmp_path / "own", names.step_dir(other, 4), model="x").rule
    (names.step_dir(other, 4) / "megatron" / "3.bin").unlink()
    torn = refused(tmp_path / "own", names.step_dir(other, 4))
    assert "3.bin is missing" in torn.rule and f"set spec.checkpoint.resumeFrom to {other}/global_step_2" in torn.fix
    renamed = names.step_dir(other, 2).rename(other / "global_step_3")
    assert "its manifest says step 2" in refused(tmp_path / "own", renamed).rule
    names.manifest_file(renamed).write_text(json.dumps({"step": 3}))
    assert "is not the manifest of a checkpoint of rljob" in refused(tmp_path / "own", renamed).rule


ADAPTERS = {"lora": {"rank": 8, "alpha": 16}}
FROZEN = {"freeze": ["vision"]}


def spec(**model: Any) -> RLJobSpec:
    return make_spec(task="sft", model={"path": "/data/model"} | model)


@pytest.mark.parametrize(
    ("before", "now", "field", "value", "said"),
    [
        ({}, {"dtype": "bfloat16"}, "dtype", "bfloat16", "float32"),
        ({}, ADAPTERS, "lora.rank", "8", "none"),
        (ADAPTERS, {}, "lora.rank", "none", "8"),
        (ADAPTERS, {"lora": {"rank": 16, "alpha": 16}}, "lora.rank", "16", "8"),
        (ADAPTERS, {"lora": {"rank": 8}}, "lora.alpha", "32", "16"),
        (FROZEN, {}, "freeze", "[]", "[vision]"),
        (FROZEN, {"freeze": ["projector"]}, "freeze", "[projector]", "[vision]"),
    ],
)
def test_a_checkpoint_whose_parameters_learnt_in_another_way_is_refused_with_the_field(
    tmp_path: Path, before: dict[str, Any], now: dict[str, Any], field: str, value: str, said: str
) -> None:
    saved(tmp_path, 1, 4, trained=trained_as(spec(**before)))
    for source in (None, names.step_dir(tmp_path, 4)):
        with pytest.raises(ConfigurationError) as caught:
            open_store(tmp_path, 2, source=source, trained=trained_as(spec(**now)))
        assert (caught.value.field, caught.value.value) == (f"spec.model.{field}", value)
        assert caught.value.rule == f"global_step_4 was trained with {said}"
    assert open_store(tmp_path, 2, trained=trained_as(spec(**before))).start


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ({}, FROZEN),
        (FROZEN, {"freeze": ["projector", "vision"]}),
        (ADAPTERS, {"lora": ADAPTERS["lora"] | {"sync": "adapters"}}),
    ],
)
def test_more_may_be_frozen_than_was_and_servers_may_get_adapters_alone(
    tmp_path: Path, before: dict[str, Any], now: dict[str, Any]
) -> None:
    saved(tmp_path, 1, 4, trained=trained_as(spec(**before)))
    assert open_store(tmp_path, 2, trained=trained_as(spec(**now))).start


def test_a_manifest_that_was_tampered_with_is_refused_in_the_path_too(tmp_path):
    saved(tmp_path, 1, 2)
    names.manifest_file(names.step_dir(tmp_path, 2)).write_text("{")
    with pytest.raises(ConfigurationError, match="spec.checkpoint.path.*is not the manifest"):
        open_store(tmp_path, 2)


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("with_buffer", [False, True])
def test_a_checkpoint_gets_what_the_buffer_holds_when_the_job_is_drained(tmp_path, with_buffer, times):
    """By a later attempt as well, which drained before it trained a step."""
    save(open_store(tmp_path, 1), 2, with_buffer)
    for attempt in range(2, 2 + times):
        store = open_store(tmp_path, attempt)
        store.renew_buffer(2, lambda directory, attempt=attempt: write_buffer(directory, f"of attempt {attempt}"))
    directory = names.step_dir(tmp_path, 2)
    start = open_store(tmp_path, 4).start
    assert start.manifest.damage(directory) == ""
    assert (directory / start.manifest.buffer / "buffer.json").read_text() == f"of attempt {1 + times}"
    assert sorted(p.name for p in directory.iterdir()) == [start.manifest.buffer, "manifest.json", "megatron"]
    assert [p.name for p in tmp_path.glob("*.tmp-*")] == []


def test_a_buffer_that_is_empty_when_the_job_is_drained_is_gone_from_the_checkpoint(tmp_path):
    store = open_store(tmp_path, 1)
    save(store, 3)
    store.renew_buffer(3, lambda directory: None)
    assert sorted(p.name for p in names.step_dir(tmp_path, 3).iterdir()) == ["manifest.json", "megatron"]
    assert open_store(tmp_path, 2).start.manifest.damage(names.step_dir(tmp_path, 3)) == ""


def test_of_every_job_the_newest_claim_is_kept(tmp_path):
    for attempt in (1, 2, 3):
        saved(tmp_path, attempt, attempt, job_uid="first")
    for attempt in (1, 2):
        open_store(tmp_path, attempt, job_uid="second")
    assert sorted(f.name for f in names.fence_dir(tmp_path).iterdir()) == ["3.claim", "3.json", "5.claim", "5.json"]
    with pytest.raises(ConfigurationError, match="another job"):
        open_store(tmp_path, 4, job_uid="first")


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), PeerLost("the driver is gone")])
def test_nothing_is_left_of_a_buffer_that_cannot_be_written_and_the_checkpoint_keeps_the_one_it_has(
    tmp_path: Path, error: Exception
) -> None:
    store = open_store(tmp_path, 1)
    save(store, 1)
    before = sorted(path.name for path in tmp_path.iterdir())

    def fails(directory: Path) -> None:
        write_buffer(directory)
        raise error

    with pytest.raises(type(error)):
        store.renew_buffer(1, fails)
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert open_store(tmp_path, 2).start.manifest.damage(names.step_dir(tmp_path, 1)) == ""
