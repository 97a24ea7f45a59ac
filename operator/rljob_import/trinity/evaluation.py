"""Trinity's eval_tasksets: evaluation sets of an RLJob."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from rljob_api.spec.evaluation import VALIDATION
from rljob_import.settings import Settings, number
from rljob_import.table import Said
from rljob_import.trinity.rows import TASKS
from rljob_import.trinity.run import SUFFIXES
from rljob_import.values import place

KEY, INTERVAL = "buffer.explorer_input.eval_tasksets", "explorer.eval_interval"
READ = {"name", "path", "split", "repeat_times", "rollout_args", "format"}
NEUTRAL = {
    "storage_type",
    "enable_progress_bar",
    "default_workflow_type",
    "default_reward_fn_type",
    "subset_name",
}


def sets(settings: Settings) -> Iterator[Said]:
    """One set for each of them, and how often."""
    given = [one for one in settings[KEY] or [] if isinstance(one, Mapping) and one.get("path")]
    if not given:
        return
    yield settings.field("evaluation.everySteps", settings.integer(INTERVAL), INTERVAL)
    moved = [_file(one) for one in given if not str(one["path"]).endswith(SUFFIXES)]
    if moved:
        yield settings.changed(KEY, f"data sets of a hub: put their files in place of {', '.join(moved)}")
    yield settings.field("evaluation.sets", [_set(settings, i, one) for i, one in enumerate(given)], KEY)
    for one in given:
        yield from _lacking(settings, one)


def _file(one: Mapping[str, Any]) -> str:
    path = str(one["path"])
    return path if path.endswith(SUFFIXES) else f"{path.rstrip('/')}/{one.get('split', 'train')}.parquet"


def _set(settings: Settings, number: int, one: Mapping[str, Any]) -> dict[str, Any]:
    """As it stands in evaluation.sets. Raises NotANumber."""
    name = re.sub(r"^\.|[^A-Za-z0-9_.-]", "_", str(one.get("name") or f"set-{number + 1}"))[:32]
    count, sampling = _number(one.get("repeat_times"), 1), _sampling(settings, one.get("rollout_args") or {})
    if sampling["temperature"] == 0:
        count = 1
    return {
        "name": f"{name}-1" if name == VALIDATION else name,
        "files": [place(_file(one), settings.options.root)],
        **({"samplesPerPrompt": int(count)} if count != 1 else {}),
        "sampling": sampling,
    }


def _sampling(settings: Settings, given: Mapping[str, Any]) -> dict[str, Any]:
    """Greedy answers read neither top_p nor top_k."""
    temperature, top_p = _number(given.get("temperature"), 1.0), _number(given.get("top_p"), 1.0)
    top_k = max(0, int(_number(given.get("top_k"), 0)))
    return {
        "temperature": temperature,
        **({"topP": top_p} if temperature and top_p != 1 else {}),
        **({"topK": top_k} if temperature and top_k else {}),
        "maxTokens": settings.integer("model.max_response_tokens"),
    }


def _number(value: Any, default: float) -> float:
    return default if value is None else number(KEY, value)


def _lacking(settings: Settings, one: Mapping[str, Any]) -> Iterator[Said]:
    """What a set cannot have of its own."""
    known = {"temperature", "top_p", "top_k", "logprobs", "n"}
    others = sorted(one.keys() - READ - NEUTRAL) + sorted((one.get("rollout_args") or {}).keys() - known)
    if others:
        yield settings.lacking(KEY, f"{one.get('name')}: a set has no {', '.join(others)} of its own")
    for name, default in (("prompt_key", "prompt"), ("response_key", "response")):
        own, training = (one.get("format") or {}).get(name, default), settings[f"{TASKS}format.{name}"]
        if own != training:
            yield settings.lacking(KEY, f"{one.get('name')}: its {name} {own} has to be {training}, as in training")
