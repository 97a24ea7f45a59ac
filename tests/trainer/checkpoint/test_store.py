import random
import subprocess
import sys
import time
from pathlib import Path
from shutil import rmtree
from threading import Timer

import pytest

from rljob_api import names
from rljob_api.protocol import Progress, Resume
from rljob_trainer.checkpoint import files
from rljob_trainer.checkpoint.fence import FencedOut
from rljob_trainer.checkpoint.files import Tally
from rljob_trainer.checkpoint.manifest import read_manifest, read_manifests
from rljob_trainer.failure import ConfigurationError
from trainer.checkpoint.saving import contents, open_store, save


def steps(store) -> list[int]:
    return [c.step for c in store.checkpoints()]


def saved(root: Path, attempt: int, *wanted: int, **options):
    store = open_store(root, attempt, **options)
    for step in wanted:
        save(store, step)
    return store


def test_a_first_attempt_starts_from_the_model(tmp_path):
    assert open_store(tmp_path / "new" / "directory", 1).start is None


def test_the_next_attempt_starts_from_the_newest_and_knows_its_cursor_and_parent(tmp_path):
    saved(tmp_path, 1, 2, 4)
    start = open_store(tmp_path, 2).start.manifest
    assert (start.step, start.parent, start.data, start.digest) == (4, 2, {"consumed": 4, "prompts": 10}, "digest4")


def test_a_trailing_slash_changes_nothing(tmp_path):
    saved(Path(f"{tmp_path}/"), 1, 2)
    assert open_store(Path(f"{tmp_path}//"), 2).start.manifest.step == 2


def test_keep_last_deletes_the_oldest_only(tmp_path):
    store = saved(tmp_path, 1, 1, 2, 3, 4)
    assert steps(store) == [3, 4] == [m.step for m in read_manifests(tmp_path)]
    assert not names.step_dir(tmp_path, 2).exists()


def test_one_that_a_kill_left_beside_the_most_that_may_be_kept_does_not_make_progress_unreadable(tmp_path):
    store = saved(tmp_path, 1, *range(1, 66), keep_last=65)
    reported = Progress(checkpoints=store.checkpoints()).dump_json()
    assert [c.step for c in Progress.model_validate_json(reported).checkpoints] == list(range(2, 66))


def test_the_older_one_stays_until_the_newer_is_complete(tmp_path):
    store = saved(tmp_path, 1, 1, keep_last=1)
    store.begin(2)
    assert [m.step for m in read_manifests(tmp_path)] == [1]


def test_what_a_killed_save_has_written_makes_room_before_the_next_one_needs_it(tmp_path):
    killed = saved(tmp_path, 1, 1).begin(2)
    (killed / "half.bin").write_bytes(b"0" * 1000)
    store = open_store(tmp_path, 2)
    assert [d.name for d in tmp_path.glob("global_step_*")] == ["global_step_1"], "before anything else is written"
    scratch = store.begin(2)
    assert sorted(d.name for d in tmp_path.glob("global_step_*")) == ["global_step_1", scratch.name]


def test_an_attempt_that_may_not_have_the_directory_deletes_nothing_there(tmp_path):
    running = saved(tmp_path, 1, 1).begin(2)
    with pytest.raises(ConfigurationError):
        open_store(tmp_path, 2, model="another")
    assert running.exists()


def test_a_kill_while_an_old_checkpoint_is_deleted_leaves_nothing_for_good(tmp_path, monkeypatch):
    store = saved(tmp_path, 1, 1, keep_last=1)
    with monkeypatch.context() as patched:
        patched.setattr("rljob_trainer.checkpoint.store.shutil.rmtree", lambda *_, **__: None)
        save(store, 2)
    assert [m.step for m in read_manifests(tmp_path)] == [2]
    save(open_store(tmp_path, 2, keep_last=1), 3)
    assert [d.name for d in tmp_path.glob("global_step_*")] == ["global_step_3"]


def test_an_old_checkpoint_that_somebody_deleted_is_not_missed(tmp_path):
    store = saved(tmp_path, 1, 1, 2)
    rmtree(names.step_dir(tmp_path, 1))
    save(store, 3)
    assert steps(store) == [2, 3]


def test_a_directory_without_manifest_is_not_a_checkpoint_and_gives_way(tmp_path):
    saved(tmp_path, 1, 1)
    names.step_dir(tmp_path, 2).mkdir()
    store = open_store(tmp_path, 2)
    assert store.start.manifest.step == 1
    save(store, 2)
    assert steps(store) == [1, 2]


def test_an_attempt_that_was_succeeded_cannot_commit(tmp_path):
    old = saved(tmp_path, 1, 1)
    old.begin(2)
    new = open_store(tmp_path, 2)
    with pytest.raises(FencedOut, match="attempt 2"):
        old.commit(contents(2, {}))
    with pytest.raises(FencedOut):
        old.begin(3)
    assert steps(new) == [1]


def test_what_a_partitioned_attempt_commits_in_the_last_instant_is_nobodys(tmp_path, monkeypatch):
    old = saved(tmp_path, 1, 1)
    open_store(tmp_path, 2)
    monkeypatch.setattr(type(old), "check", lambda self: None)
    save(old, 2)
    assert open_store(tmp_path, 3).start.manifest.step == 1


def test_a_job_whose_checkpoints_are_all_gone_does_not_start_over_by_itself(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "VISIBLE_SECONDS", 0.2)
    saved(tmp_path, 1, 1, 2)
    for step in (1, 2):
        rmtree(names.step_dir(tmp_path, step))
    for attempt in (2, 3):
        with pytest.raises(ConfigurationError, match="has saved global_step_1, global_step_2 there") as caught:
            open_store(tmp_path, attempt, source=tmp_path / "other")
    assert "`resume --from-step 0`" in caught.value.fix
    assert save(anew := open_store(tmp_path, 4, step=0), 1) is None and anew.start is None
    assert open_store(tmp_path, 5).start.manifest.step == 1


def test_one_that_the_attempt_before_inherited_is_missed_too(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "VISIBLE_SECONDS", 0.2)
    saved(tmp_path, 1, 1)
    open_store(tmp_path, 2)
    rmtree(names.step_dir(tmp_path, 1))
    with pytest.raises(ConfigurationError, match="no complete checkpoint of its lineage is left"):
        open_store(tmp_path, 3)


def test_a_job_whose_whole_directory_was_emptied_is_stopped_by_what_the_operator_knows(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "VISIBLE_SECONDS", 0.2)
    with pytest.raises(ConfigurationError, match="has saved global_step_7 there"):
        open_store(tmp_path, 2, resume=Resume(policy="auto", saved=7))
    assert open_store(tmp_path, 3, resume=Resume(policy="auto", step=0, saved=7)).start is None


def test_what_a_partitioned_attempt_left_as_the_only_one_is_neither_used_nor_deleted(tmp_path, monkeypatch):
    """As after a stale listing: it did not see the newer fence, committed, and deleted the only checkpoint that this fence lists."""
    monkeypatch.setattr(files, "VISIBLE_SECONDS", 0.2)
    old = saved(tmp_path, 1, 30, keep_last=1)
    open_store(tmp_path, 2, keep_last=1)
    monkeypatch.setattr(type(old), "check", lambda self: None)
    save(old, 40)
    with pytest.raises(ConfigurationError, match="has saved global_step_30 there") as caught:
        open_store(tmp_path, 3, keep_last=1)
    assert f"a new job can start from {names.step_dir(tmp_path, 40)}" in caught.value.fix
    other = open_store(tmp_path, 1, job_uid="new", source=names.step_dir(tmp_path, 40), keep_last=1)
    assert other.start.manifest.step == 40


def test_a_checkpoint_that_a_slow_volume_shows_late_is_waited_for(tmp_path):
    saved(tmp_path, 1, 1)
    hidden = names.step_dir(tmp_path, 1).rename(tmp_path / "hidden")
    Timer(0.5, lambda: hidden.rename(names.step_dir(tmp_path, 1))).start()
    assert open_store(tmp_path, 2).start.manifest.step == 1


def test_a_new_job_starts_from_the_model_where_another_jobs_checkpoints_were_removed(tmp_path):
    saved(tmp_path, 1, 1)
    rmtree(names.step_dir(tmp_path, 1))
    assert open_store(tmp_path, 1, job_uid="new").start is None


def test_a_lower_attempt_of_the_same_job_is_refused(tmp_path):
    open_store(tmp_path, 2)
    with pytest.raises(FencedOut):
        open_store(tmp_path, 1)


def test_going_back_leaves_the_later_ones_behind_for_good(tmp_path):
    saved(tmp_path, 1, 2, 4, 6, keep_last=5)
    store = open_store(tmp_path, 2, step=2, keep_last=5)
    assert store.start.manifest.step == 2 and steps(store) == [2]
    save(store, 3)
    assert open_store(tmp_path, 3, keep_last=5).start.manifest.step == 3
    assert [m.step for m in read_manifests(tmp_path)] == [2, 3]


def test_the_same_step_of_another_branch_replaces_the_abandoned_one(tmp_path):
    saved(tmp_path, 1, 2, 4)
    save(open_store(tmp_path, 2, step=2), 4)
    start = open_store(tmp_path, 3).start.manifest
    assert (start.step, start.attempt) == (4, 2)


def test_step_0_goes_back_to_the_model(tmp_path):
    saved(tmp_path, 1, 2)
    assert open_store(tmp_path, 2, step=0).start is None


def test_a_step_that_is_not_there_is_refused_with_those_that_are(tmp_path):
    saved(tmp_path, 1, 2, 4)
    with pytest.raises(ConfigurationError, match="there are: 2, 4"):
        open_store(tmp_path, 2, step=3)


def test_a_request_to_start_over_is_granted_also_where_a_checkpoint_is_required(tmp_path):
    assert open_store(tmp_path, 1, policy="required", step=0).start is None


def test_required_fails_without_a_checkpoint(tmp_path):
    with pytest.raises(ConfigurationError, match="holds no complete checkpoint"):
        open_store(tmp_path, 1, policy="required")


def test_never_refuses_a_used_directory_at_the_jobs_first_start_only(tmp_path):
    saved(tmp_path, 1, 2, policy="never", job_uid="first")
    assert open_store(tmp_path, 2, policy="never", job_uid="first").start.manifest.step == 2
    with pytest.raises(ConfigurationError, match="holds a complete checkpoint of step 2"):
        open_store(tmp_path, 1, policy="never", job_uid="second")


def test_a_directory_passes_to_another_job_but_not_back(tmp_path):
    saved(tmp_path, 5, 2, job_uid="first")
    assert open_store(tmp_path, 1, job_uid="second").start.manifest.step == 2
    with pytest.raises(ConfigurationError, match="another job"):
        open_store(tmp_path, 6, job_uid="first")


def test_a_checkpoint_that_was_copied_here_is_refused(tmp_path):
    saved(tmp_path / "a", 1, 2)
    (tmp_path / "b").mkdir()
    names.step_dir(tmp_path / "a", 2).rename(names.step_dir(tmp_path / "b", 2))
    with pytest.raises(ConfigurationError, match="was not made in this directory"):
        open_store(tmp_path / "b", 1)


def test_a_damaged_newest_one_is_an_error_that_names_the_one_before(tmp_path):
    saved(tmp_path, 1, 2, 4)
    (names.step_dir(tmp_path, 4) / "megatron" / "3.bin").write_bytes(b"short")
    with pytest.raises(ConfigurationError, match=r"3.bin has 5 bytes, its manifest says 1000; .*--from-step 2"):
        open_store(tmp_path, 2)
    assert open_store(tmp_path, 2, step=2).start.manifest.step == 2


def test_changed_content_of_the_same_size_is_found_by_the_rank_that_reads_it(tmp_path):
    saved(tmp_path, 1, 2)
    (names.step_dir(tmp_path, 2) / "megatron" / "3.bin").write_bytes(b"x" * 1000)
    directory = names.step_dir(tmp_path, 2)
    found = [read_manifest(directory).corruption(directory, part, 4, Tally()) for part in range(4)]
    assert [bool(f) for f in found] == [True, False, False, False], "the buffer's file comes first"


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    saved(tmp_path, 1, 2)
    with pytest.raises(ConfigurationError, match="another model"):
        open_store(tmp_path, 2, model="other")


def test_a_directory_that_cannot_be_written_is_the_users_to_mend(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="cannot be written") as caught:
        open_store(tmp_path / "file", 1)
    assert caught.value.field == "spec.checkpoint.path"


def test_a_kill_at_any_moment_loses_no_complete_checkpoint(tmp_path):
    chance = random.Random(0)
    known = 0
    script = str(Path(__file__).parent / "saving.py")
    for attempt in range(1, 9):
        process = subprocess.Popen(
            [sys.executable, script, str(tmp_path), str(attempt)], stdout=subprocess.PIPE, text=True
        )
        began = process.stdout.readline()
        assert int(began.split()[1]) >= known
        lines = [process.stdout.readline() for _ in range(attempt % 3)]
        time.sleep(chance.uniform(0, 0.1))
        process.kill()
        said = [int(line.split()[1]) for line in lines + process.stdout.readlines()]
        known = max([known, int(began.split()[1]), *said])
    last = open_store(tmp_path, 100)
    assert last.start.manifest.step >= known > 8
    manifest, directory = last.start.manifest, last.start.directory
    assert manifest.damage(directory) == manifest.corruption(directory, 0, 1, Tally()) == ""
