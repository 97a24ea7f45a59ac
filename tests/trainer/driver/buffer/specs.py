"""The smallest specs that say something."""

from typing import Any

from rljob_api.spec import RLJobSpec


def job(prompts: int = 2, samples: int = 2, train: dict | None = None, **sections: Any) -> RLJobSpec:
    return RLJobSpec.model_validate(
        {
            "model": {"path": "/m"},
            "data": {"train": ["/t.parquet"]},
            "rewards": [{"rule": "exactMatch"}],
            "train": {"steps": 1, "promptsPerStep": prompts, "samplesPerPrompt": samples} | (train or {}),
            "checkpoint": {"path": "/c"},
            "image": "i",
        }
        | sections
    )
