"""Makers of specs for tests."""

from typing import Any

from rljob_api.spec import RLJobSpec

RL: dict[str, Any] = {
    "data": {"train": ["/data/train.parquet"], "maxPromptTokens": 16},
    "rewards": [{"rule": "exactMatch"}],
    "train": {"steps": 10, "promptsPerStep": 4, "samplesPerPrompt": 4},
    "rollout": {"sampling": {"maxTokens": 8}},
}
SUPERVISED: dict[str, Any] = {
    "data": {"train": ["/data/train.parquet"], "maxTokens": 32},
    "train": {"steps": 10, "samplesPerStep": 4},
}
SERVICE: dict[str, Any] = {"service": {"maxTokens": 64, "maxRank": 8}}


def raw_spec(**changes: Any) -> dict[str, Any]:
    """The smallest valid spec of a task, `rl` unless `task` is among the changes, with top-level sections replaced or, for dicts, merged."""
    spec: dict[str, Any] = {
        "model": {"path": "/data/model", "dtype": "float32"},
        "trainer": {"device": "cpu"},
        "checkpoint": {"path": "/data/run"},
        "image": "trainer:test",
        **{"rl": RL, "service": SERVICE}.get(changes.get("task", "rl"), SUPERVISED),
    }
    for key, value in changes.items():
        spec[key] = {**spec.get(key, {}), **value} if isinstance(value, dict) else value
    return spec


def make_spec(**changes: Any) -> RLJobSpec:
    return RLJobSpec.model_validate(raw_spec(**changes))
