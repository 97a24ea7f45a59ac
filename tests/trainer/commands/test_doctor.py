"""`python -m rljob_trainer doctor`."""

from pathlib import Path

import pytest

from api.specs import make_spec
from rljob_api import names
from rljob_api.protocol import Control, Resume
from rljob_trainer.commands.doctor import PACKAGES, describe


def facts() -> dict[str, str]:
    return {line[:20].strip(): line[20:] for line in describe().splitlines()}


def test_it_names_every_package_and_misses_nothing_on_cpu() -> None:
    found = facts()
    assert set(PACKAGES) <= set(found)
    assert found["transformer-engine"] == "absent" and found["layers"].startswith("torch")
    assert found["missing"] == "nothing"
    assert {"memlock", "IPC_LOCK", "InfiniBand", "/dev/shm", "GPU peer access"} <= set(found)


def write_control(work: Path, attempt: int, model: str, adapters: str) -> None:
    (work / f"attempt-{attempt}").mkdir()
    control = Control(
        name="job",
        namespace="n",
        job_uid="u",
        attempt=attempt,
        command="run",
        members=[],
        gangs={},
        resume=Resume(policy="auto"),
        spec=make_spec(model={"path": model, "lora": {"path": adapters, "rank": 8}}),
    )
    (work / f"attempt-{attempt}" / names.CONTROL_KEY).write_text(control.dump_json())


def test_files_of_a_job_that_cannot_be_read_hide_no_other_fact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(names.ENV_WORK, str(tmp_path))
    write_control(tmp_path, 1, f"/{'long' * 100}", "/nowhere")  # a name that every file system refuses
    found = facts()
    assert (
        found["model and adapters"].startswith("cannot be read: ")
        and "File name too long" in found["model and adapters"]
    )
    assert found["missing"] == "nothing"


def test_it_names_all_that_is_wrong_with_the_adapters_of_the_job_whose_pod_it_is_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(names.ENV_WORK, str(tmp_path))
    assert "model and adapters" not in facts()
    for attempt, path in ((9, "/nowhere"), (10, str(tmp_path))):
        write_control(tmp_path, attempt, "/data/model", path)
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 4, "lora_alpha": 4}')
    said = describe()
    assert "holds no adapter_model.safetensors" in said and "have r = 4" in said and "have lora_alpha = 4" in said


def test_it_says_why_transformer_engine_does_not_load_and_computes_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, metadata = tmp_path / "transformer_engine", tmp_path / "transformer_engine-2.20.2.dist-info"
    package.mkdir()
    metadata.mkdir()
    (package / "__init__.py").write_text("raise OSError('libcudnn.so.9: cannot open shared object file')")
    (metadata / "METADATA").write_text("Metadata-Version: 2.4\nName: transformer_engine\nVersion: 2.20.2\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = facts()
    assert found["transformer-engine"] == "2.20.2" and found["layers"].startswith("torch")
    assert "Transformer Engine (OSError: libcudnn.so.9: cannot open shared object file)" in found["missing"]
    assert "a GPU" in found["missing"]
