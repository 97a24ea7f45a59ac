"""Fine-tuning on images, as the launcher starts it: the answer is in the picture alone, in its colour."""

import json
from pathlib import Path

import pytest

from rljob_api import names
from rljob_trainer.rank import main as rank
from trainer.data.vision import WORDS, png_url, save_processor
from trainer.megatron.models import make_model
from trainer.rank.job import Job

pytestmark = pytest.mark.slow

STEPS, BLIND = 36, 0.34
"""BLIND: the least loss of an answer of two tokens, of which the first is one of two."""
QUESTION = {"role": "user", "content": "w5 <image> w6"}
COLOURS = {"w7": "#{:02x}1010", "w8": "#1010{:02x}"}


def rows(shades: range) -> str:
    found = [
        {
            "messages": [QUESTION, {"role": "assistant", "content": answer}],
            "images": png_url(16, 16, colour.format(shade)),
        }
        for shade in shades
        for answer, colour in COLOURS.items()
    ]
    return "".join(json.dumps(row) + "\n" for row in found)


@pytest.mark.parametrize("cut", [{"tensor": 2}, {}], ids=["tensor parallel", "data parallel"])
def test_fine_tuning_learns_what_only_the_images_say(tmp_path: Path, cut: dict[str, int]) -> None:
    rank.prepare()
    save_processor(make_model(tmp_path / "model", "qwen2_5_vl", tied=False, vocabulary=WORDS))
    for name, shades in {"train": range(160, 256, 6), "held-out": range(163, 256, 24)}.items():
        (tmp_path / f"{name}.jsonl").write_text(rows(shades))
    job = Job(
        tmp_path,
        tmp_path,
        task="sft",
        rewards=[],
        algorithm={},
        rollout={},
        evaluation={"everySteps": STEPS},
        data={
            "train": [str(tmp_path / "train.jsonl")],
            "validation": [str(tmp_path / "held-out.jsonl")],
            "imageKey": "images",
            "maxTokens": 32,
        },
        train={"samplesPerStep": 8, "tokensPerMicroBatch": 64, "steps": STEPS, "optimizer": {"learningRate": 3e-3}},
        trainer={"device": "cpu", "processesPerNode": 2, "parallelism": cut},
        checkpoint={"path": str(tmp_path / "run"), "everySteps": STEPS, "asynchronous": False},
    )
    running = job.start(1)
    assert running.wait() == [0, 0, 0]
    held_out = {m["step"]: m["evaluation/loss"] for m in job.metrics() if "evaluation/loss" in m}
    assert list(held_out) == [0, STEPS]
    assert held_out[STEPS] < BLIND / 2 < BLIND < held_out[0]
    progress = running.progress()
    assert (running.outcome(), progress.step) == ("succeeded", STEPS)
    assert names.manifest_file(Path(progress.checkpoints[-1].path)).is_file()
    assert "vision_config" in json.loads((Path(progress.export) / "config.json").read_text())
