"""What a run finds of an earlier one in its directory before anything starts."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from api.specs import make_spec, raw_spec
from rljob_api import names
from rljob_api.protocol import Progress
from rljob_api.spec import RLJobSpec
from rljob_trainer.checkpoint.lineage import trained_as
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.local.earlier import ANOTHER, Earlier, last_attempt, remember_rewards
from rljob_trainer.local.progress import summary
from rljob_trainer.local.run import run
from trainer.checkpoint.saving import open_store, save
from trainer.local.test_decide import make_inputs, report, seen, write_manifest

FINISHED = (
    "step 4 of 4 is already in {}: nothing to train; raise spec.train.steps, or name another spec.checkpoint.path"
)


def saved(root: Path, *steps: int, export: bool = True) -> None:
    store = open_store(root, 1)
    for step in steps:
        save(store, step)
    if export:
        names.huggingface_dir(root, steps[-1]).mkdir()


def spec_of(root: Path, steps: int = 4, **changes: Any) -> RLJobSpec:
    own = {"checkpoint": {"path": str(root)}, "train": {"steps": steps}}
    return make_spec(**own, **changes)


def lines(spec: RLJobSpec) -> list[str]:
    found = Earlier.of(spec)
    assert found
    return list(found.lines())


def test_a_finished_run_ends_at_once_and_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_inputs(tmp_path)
    saved(tmp_path / "run", 2, 4)
    manifest = write_manifest(tmp_path, raw_spec(train={"steps": 4}))
    assert run(manifest, [f"/data={tmp_path}"], tmp_path / "work") == 0
    assert capsys.readouterr().out == f"demo: {FINISHED.format(tmp_path / 'run' / 'global_step_4')}\n"
    assert not (tmp_path / "work").exists()


def test_a_run_with_steps_left_says_where_it_goes_on(tmp_path: Path) -> None:
    assert Earlier.of(spec_of(tmp_path / "none")) is None
    saved(tmp_path, 2)
    spec = spec_of(tmp_path)
    assert lines(spec) == [f"continuing from {tmp_path}/global_step_2, step 2 of 4"]
    found = Earlier.of(spec)
    assert found and not found.leaves_nothing


@pytest.mark.parametrize("changes", [{"evaluation": {"only": True}}, {"checkpoint": {"upload": "s3://bucket/run"}}])
def test_a_finished_run_that_still_has_something_to_do_is_started(tmp_path: Path, changes: dict[str, Any]) -> None:
    saved(tmp_path, 4)
    spec = spec_of(tmp_path)
    parts = {key: getattr(spec, key).model_copy(update=dict(value)) for key, value in changes.items()}
    found = Earlier.of(spec.model_copy(update=parts))
    assert found and not found.leaves_nothing and Earlier.of(spec).leaves_nothing


def test_an_export_that_is_missing_is_made(tmp_path: Path) -> None:
    saved(tmp_path, 4, export=False)
    found = Earlier.of(spec_of(tmp_path))
    assert found and not found.leaves_nothing and "nothing to train" in next(found.lines())


def test_another_runs_checkpoint_is_where_it_starts_and_not_its_end(tmp_path: Path) -> None:
    saved(tmp_path / "other", 4)
    start = str(names.step_dir(tmp_path / "other", 4))
    own = spec_of(tmp_path / "own")
    spec = own.model_copy(update={"checkpoint": own.checkpoint.model_copy(update={"resume_from": start})})
    found = Earlier.of(spec)
    assert found and found.directory == Path(start) and not found.leaves_nothing
    assert "in which these 4 count, or name an earlier step in spec.checkpoint.resumeFrom" in next(found.lines())
    only = spec.model_copy(update={"evaluation": spec.evaluation.model_copy(update={"only": True})})
    assert lines(only) == [f"evaluating {start}, step 4"]


def test_a_directory_that_is_no_checkpoint_of_its_own_is_refused_before_anything_starts(tmp_path: Path) -> None:
    saved(tmp_path, 4)
    shutil.rmtree(names.fence_dir(tmp_path))
    with pytest.raises(ConfigurationError, match="was not made in this directory"):
        Earlier.of(spec_of(tmp_path))


def test_rewards_that_changed_since_are_named(tmp_path: Path) -> None:
    file = tmp_path / "reward.py"
    file.write_text("def reward(response): return 1\n")
    root = tmp_path / "run"
    rewards = [{"rule": "number"}, {"python": {"path": str(file)}}]
    saved(root, 2)
    spec = spec_of(root, rewards=rewards)
    assert len(lines(spec)) == 1, "nobody knows what the earlier run had"
    remember_rewards(spec)
    assert len(lines(spec)) == 1
    file.write_text("def reward(response): return 2\n")
    warning = f"not as in the run that saved step 2; {ANOTHER}"
    assert lines(spec)[1] == f"warning: spec.rewards[1].python.path = {file}: {warning}"
    fewer = spec_of(root, rewards=[{"rule": "exactMatch"}])
    assert lines(fewer)[1] == f"warning: spec.rewards[0], spec.rewards[1]: {warning}"
    remember_rewards(fewer)
    assert len(lines(fewer)) == 1


def test_the_last_attempt_of_earlier_runs_is_that_of_the_logs(tmp_path: Path) -> None:
    assert last_attempt(tmp_path) == 0
    for name in ("attempt-9", "attempt-10", "attempt-x", "attempt-11.txt", "other"):
        (tmp_path / "logs" / name).mkdir(parents=True)
    assert last_attempt(tmp_path) == 10


@pytest.mark.parametrize("text", ["", "{", "3", '{"a": 1}', "[[]]"])
def test_what_is_known_of_rewards_may_say_something_else(tmp_path: Path, text: str) -> None:
    saved(tmp_path, 2)
    (tmp_path / "rewards.json").write_text(text)
    assert lines(spec_of(tmp_path))[0].startswith("continuing")


def test_a_run_of_epochs_that_was_finished_before_says_so_in_the_end() -> None:
    done = Progress(step=4, steps=4, started_from=4)
    ended = seen(report("t0", attempt=1, state="stopped", result="succeeded", progress=done))
    assert summary(ended).splitlines()[0] == "4 steps, all of an earlier run: nothing was trained"


def test_a_run_whose_model_is_of_another_type_is_refused_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_inputs(tmp_path)
    spec = raw_spec()
    save(open_store(tmp_path / "run", 1, trained=trained_as(make_spec())), 2)
    spec["model"]["dtype"] = "bfloat16"
    assert run(write_manifest(tmp_path, spec), [f"/data={tmp_path}"], tmp_path / "work") == 1
    assert "spec.model.dtype = bfloat16: global_step_2 was trained with float32" in capsys.readouterr().err
    assert not (tmp_path / "work").exists()
