"""plan of fine-tuning with the published config.json of GLM-5, and with that of GLM-5.2, of whose layers 21 of 78 have an indexer."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from api.glm_5 import FEWER_INDEXERS, PUBLISHED
from kubectl_rljob.__main__ import main

LAYOUT = {"tensor": 8, "pipeline": 2, "expert": 64, "expertTensor": 1}


def planned(directory: Path, config: dict[str, Any], **trainer: Any) -> int:
    """The exit status of plan for a job on 256 H200s."""
    spec = {
        "task": "sft",
        "image": "registry.invalid/trainer",
        "model": {"path": "/models/glm-5"},
        "data": {"train": ["/data/train.parquet"]},
        "train": {"steps": 100, "tokensPerMicroBatch": 16384},
        "checkpoint": {"path": "/checkpoints/glm-5"},
        "trainer": {
            "nodes": 32,
            "processesPerNode": 8,
            "parallelism": LAYOUT,
            "recompute": {"granularity": "full"},
            **trainer,
        },
    }
    job = {"apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": "glm-5"}, "spec": spec}
    (directory / "job.yaml").write_text(yaml.safe_dump(job))
    (directory / "config.json").write_text(json.dumps(config))
    return main(["plan", "-f", str(directory / "job.yaml"), "--model", str(directory), "--offline", "--gpu", "h200"])


def test_glm_5_fits_into_256_h200s(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert planned(tmp_path, PUBLISHED) == 0
    page = capsys.readouterr().out
    assert "\nFits, by the estimate\n" in page
    assert "1 export of 1,487.8 GB" in page, "744 billion parameters of two bytes"


def test_stages_of_glm_5_2_are_cut_where_plan_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert planned(tmp_path, PUBLISHED | FEWER_INDEXERS) == 1
    said = "".join(capsys.readouterr())
    assert (
        "a piece of a stage would begin with layer 39, which takes the tokens that the one before it attends to" in said
    )
    assert "pieces begin with any of the layers 0, 1, 2, 6, 10, 14, 18, 22, 26, 30, 34, 38, 42," in said
    cut = {"pipeline_model_parallel_layout": "Et*38|t*40L"}
    assert planned(tmp_path, PUBLISHED | FEWER_INDEXERS, transformerConfig=cut) == 0
    assert "stages of 38, 40 layers" in capsys.readouterr().out
