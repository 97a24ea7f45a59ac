"""Makers of specs for tests."""

from typing import Any

from rljob_api.spec import RLJobSpec


def raw_spec(**changes: Any) -> dict[str, Any]:
    """The smallest valid spec, with top-level sections replaced or, for dicts, merged."""
    spec: dict[str, Any] = {
        "model": {"path": "/data/model", "dtype": "float32"},
        "data": {"train": ["/data/train.parquet"], "maxPromptTokens": 16},
        "rewards": [{"rule": "exactMatch"}],
        "train": {"steps": 10, "promptsPerStep": 4, "samplesPerPrompt": 4},
        "trainer": {"device": "cpu"},
        "rollout": {"sampling": {"maxTokens": 8}},
        "checkpoint": {"path": "/data/run"},
        "image": "trainer:test",
    }
    for key, value in changes.items():
        spec[key] = {**spec.get(key, {}), **value} if isinstance(value, dict) else value
    return spec


def make_spec(**changes: Any) -> RLJobSpec:
    return RLJobSpec.model_validate(raw_spec(**changes))
