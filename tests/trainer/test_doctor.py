"""`python -m rljob_trainer doctor`."""

from pathlib import Path

import pytest

from rljob_trainer.doctor import PACKAGES, describe


def facts() -> dict[str, str]:
    return {line[:20].strip(): line[20:] for line in describe().splitlines()}


def test_it_names_every_package_and_misses_nothing_on_cpu() -> None:
    found = facts()
    assert set(PACKAGES) <= set(found)
    assert found["transformer-engine"] == "absent" and found["layers"].startswith("torch")
    assert found["missing"] == "nothing"
    assert {"memlock", "IPC_LOCK", "InfiniBand", "/dev/shm", "GPU peer access"} <= set(found)


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
