"""A run's directory in place of a model's."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from api.specs import make_spec
from rljob_api.protocol import Control, Resume
from rljob_trainer.checkpoint.exports import CHOSEN, began_from, newest_export, violations, with_model


def model(directory: Path) -> Path:
    directory.mkdir(parents=True)
    (directory / "config.json").write_text("{}")
    return directory


def checkpoint(run: Path, step: int, complete: bool = True) -> Path:
    found = model(run / f"global_step_{step}" / "huggingface")
    if complete:
        (found.parent / "manifest.json").write_text("{}")
    return found


def control(run: Path, own: Path) -> Control:
    spec = make_spec(model={"path": str(run)}, checkpoint={"path": str(own)})
    return Control(
        resume=Resume(policy="auto"),
        name="demo",
        namespace="research",
        job_uid="u",
        attempt=1,
        command="run",
        members=[],
        gangs={},
        spec=spec,
    )


def path_of(run: Path, own: Path) -> str:
    return with_model(control(run, own)).spec.model.path


def test_the_newest_export_is_that_of_the_greatest_step_wherever_it_lies(tmp_path: Path) -> None:
    assert newest_export(tmp_path) is None, "nothing is exported"
    older = model(tmp_path / "exports" / "step_9")
    assert newest_export(tmp_path) == older
    last = checkpoint(tmp_path, 32)
    assert newest_export(tmp_path) == last
    newest = model(tmp_path / "exports" / "step_40")
    assert newest_export(tmp_path) == newest


def test_what_is_being_written_and_what_is_no_checkpoint_does_not_count(tmp_path: Path) -> None:
    found = model(tmp_path / "exports" / "step_3")
    checkpoint(tmp_path, 8, complete=False)
    model(tmp_path / "exports" / "step_9.tmp-1")
    (tmp_path / "exports" / "step_12").mkdir()
    (tmp_path / "global_step_20").mkdir()
    (tmp_path / "global_step_20" / "manifest.json").write_text("{}")
    assert newest_export(tmp_path) == found


@pytest.mark.parametrize("name", ["step_9.tmp", "step_9.old", "step_x"])
def test_a_job_that_starts_during_the_other_runs_first_export_does_not_choose_it(tmp_path: Path, name: str) -> None:
    run, own = tmp_path / "sft", tmp_path / "own"
    model(run / "exports" / name)
    model(run / f"global_{name}" / "huggingface")
    (run / f"global_{name}" / "manifest.json").write_text("{}")
    assert newest_export(run) is None
    assert path_of(run, own) == str(run) and not own.exists()
    (run / "exports" / name).rename(run / "exports" / "step_9")
    assert path_of(run, own) == str(run / "exports" / "step_9")


def test_a_chosen_export_that_its_run_has_deleted_is_refused_and_named(tmp_path: Path) -> None:
    run, own = tmp_path / "sft", tmp_path / "own"
    chosen = model(run / "exports" / "step_3")
    began = with_model(control(run, own)).spec
    assert violations(began) == []
    (chosen / "config.json").unlink()
    chosen.rmdir()
    model(run / "exports" / "step_12")
    later = with_model(control(run, own)).spec
    assert later == began, "no later attempt begins from another model"
    (found,) = violations(later)
    assert (found.field, found.value) == ("spec.model.path", str(run))
    assert (
        f"began from {chosen}" in found.rule
        and "there no longer" in found.rule
        and "another checkpoint.path" in found.fix
    )
    assert violations(with_model(control(tmp_path / "nowhere", tmp_path / "other")).spec) == []


def test_a_models_own_directory_is_that_model(tmp_path: Path) -> None:
    run, own = model(tmp_path / "model"), tmp_path / "own"
    model(run / "exports" / "step_3")
    assert path_of(run, own) == str(run) and not own.exists()


def test_the_choice_is_kept_when_the_other_run_goes_on(tmp_path: Path) -> None:
    run, own = tmp_path / "sft", tmp_path / "own"
    first = model(run / "exports" / "step_3")
    assert path_of(run, own) == str(first)
    model(run / "exports" / "step_4")
    assert path_of(run, own) == str(first)
    assert path_of(run, tmp_path / "another") == str(run / "exports" / "step_4")
    assert json.loads((own / CHOSEN).read_text()) == {"run": str(run), "model": str(first)}


def test_an_export_of_a_checkpoint_takes_the_model_that_its_job_began_from(tmp_path: Path) -> None:
    run, own = tmp_path / "sft", tmp_path / "own"
    first = model(run / "exports" / "step_3")
    assert began_from(run, own) == run, "no job has begun from it"
    path_of(run, own)
    model(run / "exports" / "step_4")
    assert began_from(run, own) == first and began_from(tmp_path / "other", own) == tmp_path / "other"


def test_another_run_in_the_spec_is_another_choice(tmp_path: Path) -> None:
    runs, own = [tmp_path / "a", tmp_path / "b"], tmp_path / "own"
    exports = [model(run / "exports" / "step_3") for run in runs]
    assert [path_of(run, own) for run in runs] == [str(e) for e in exports]


def test_pods_that_choose_at_the_same_time_choose_one_model(tmp_path: Path) -> None:
    run, own = tmp_path / "sft", tmp_path / "own"
    model(run / "exports" / "step_1")

    def pod(number: int) -> str:
        model(run / "exports" / f"step_{number + 2}")
        return path_of(run, own)

    with ThreadPoolExecutor(8) as pods:
        assert len(set(pods.map(pod, range(32)))) == 1
    assert [file.name for file in own.iterdir()] == [CHOSEN], "nothing else is left"


@pytest.mark.parametrize("text", ["", "no json", "{}", "[]", '{"run": "/a"}'])
def test_a_choice_that_cannot_be_read_is_made_again(tmp_path: Path, text: str) -> None:
    run, own = tmp_path / "sft", tmp_path / "own"
    found = model(run / "exports" / "step_3")
    own.mkdir()
    (own / CHOSEN).write_text(text)
    assert path_of(run, own) == str(found)
    assert json.loads((own / CHOSEN).read_text()) == {"run": str(run), "model": str(found)}
