"""What all of Trinity's tasks say alike: model, name, directory, files, trackers."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from rljob_api.spec.train import VALIDATION
from rljob_import.engine import refused
from rljob_import.settings import Settings, integer, number, show
from rljob_import.shared import places
from rljob_import.shared.adapters import ALL, WHERE_PROVEN
from rljob_import.shared.values import items, place
from rljob_import.systems.trinity.rl_rows import SERVED, TASKS
from rljob_import.table import Note, Outcome, Problem, Said

SUFFIXES = (".jsonl", ".json", ".parquet", ".arrow")
KEY, INTERVAL = "buffer.explorer_input.eval_tasksets", "explorer.eval_interval"
READ = {"name", "path", "split", "repeat_times", "rollout_args", "format"}
NEUTRAL = {
    "storage_type",
    "enable_progress_bar",
    "default_workflow_type",
    "default_reward_fn_type",
    "subset_name",
}
DISTILL = "on_policy_distill"
AUXILIARY = "explorer.auxiliary_models"
POOL_ARGUMENTS = ("max_model_len", "enforce_eager", "enable_prefix_caching", "gpu_memory_utilization")


def run(settings: Settings) -> Iterator[Said]:
    if settings["model.model_path"]:
        yield from places.located(settings, "model.path", "model.model_path")
    else:
        yield Problem("model.model_path", "is missing; if a variable says it: --env NAME=VALUE")
    yield from places.name(settings, "name")
    directory = f"{settings['checkpoint_root_dir'] or 'checkpoints'}/{settings['project']}/{settings['name']}"
    yield from places.placed(settings, "checkpoint.path", directory, "checkpoint_root_dir", "project", "name")
    yield from places.kept(settings, "trainer.max_checkpoints_to_keep")
    if settings["monitor.monitor_type"] == "wandb":
        env = [{"name": "WANDB_PROJECT", "value": str(settings["project"])}]
        yield settings.field("env", env, "monitor.monitor_type", "project")
    elif settings["monitor.monitor_type"] not in (None, "tensorboard"):
        yield settings.lacking("monitor.monitor_type", "metrics are written to TensorBoard and metrics.jsonl")


def length_key(settings: Settings, name: str) -> str:
    """Of the keys of a length the one that counts: the servers' own, where the file has it (InferenceModelConfig of Trinity-RFT)."""
    return f"{SERVED}{name}" if f"{SERVED}{name}" in settings else f"model.{name}"


def tuning(settings: Settings) -> Iterator[Said]:
    """Of the adapters the first ones, which Trinity trains."""
    key = "model.lora_configs"
    given = settings[key]
    if not given:
        return
    first = given[0] if isinstance(given, list) else None
    if not isinstance(first, Mapping):
        yield refused(key, given)
        return
    for name, field in (("lora_rank", "rank"), ("lora_alpha", "alpha")):
        yield settings.field(f"model.lora.{field}", integer(key, first.get(name, 32)), key)
    if first.get("path"):
        yield settings.field("model.lora.path", place(first["path"], settings.options.root), key)
    targets = first.get("target_modules", ALL[1])
    if targets in ALL:
        yield settings.changed(key, WHERE_PROVEN)
    else:
        yield settings.lacking(key, f"target_modules {show(targets)}: name them in model.lora.targets")
    if given[1:] or first.get("exclude_modules"):
        yield settings.lacking(key, "one set of adapters is trained, next to every target")


def files(settings: Settings, prefix: str) -> Iterator[Said]:
    """The training data: a file, or a data set of a hub or in a directory, whose files have to be put on the volume."""
    path = settings[f"{prefix}path"]
    if not path:
        yield Problem(f"{prefix}path", "is missing; if a variable says it: --env NAME=VALUE")
        return
    if not str(path).endswith(SUFFIXES):
        file = f"{settings[f'{prefix}split']}.parquet"
        yield settings.changed(
            f"{prefix}path", f"a data set in a directory or on a hub: put its files in place of {file}"
        )
        path = f"{str(path).rstrip('/')}/{file}"
    yield from places.placed_files(settings, "data.train", [path], f"{prefix}path")


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
        "maxTokens": settings.integer(length_key(settings, "max_response_tokens")),
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


def distillation(settings: Settings) -> Iterator[Said]:
    weight, taught = "algorithm.advantage_fn_args.kl_coef", teacher(settings)
    if taught is None:
        text = f"{DISTILL} needs one, the teacher; if a variable says its model_path: --env NAME=VALUE"
        yield Problem(AUXILIARY, text)
        return
    (engines, size), given_path = servers(taught), taught["model_path"]
    path = place(given_path, settings.options.root)
    pool = {"name": "teacher", "model": path, "replicas": engines, "tensorParallel": size}
    given = {name.replace("_", "-"): taught[name] for name in POOL_ARGUMENTS if taught.get(name) is not None}
    yield settings.field("pools", [pool | ({"vllmArgs": given} if given else {})], AUXILIARY)
    yield settings.field("algorithm.distillation.pool", "teacher", "algorithm.algorithm_type")
    yield settings.field("algorithm.distillation.coefficient", float(settings.number(weight)), weight)
    if path != given_path:
        number = settings[AUXILIARY].index(taught)
        key = f"{AUXILIARY}[{number}].model_path"
        yield Note(Outcome.CHANGED, key, f"{given_path}: put it on the volume, at {path}")
    if settings[AUXILIARY][1:]:
        yield settings.lacking(AUXILIARY, "the first with a model_path is the teacher, and the others are left out")


def teacher(settings: Settings) -> Mapping[str, Any] | None:
    """Of on_policy_distill: the first auxiliary model that has a path."""
    if settings["algorithm.algorithm_type"] != DISTILL:
        return None
    models = items(settings[AUXILIARY])
    return next((model for model in models if isinstance(model, Mapping) and model.get("model_path")), None)


def servers(model: Mapping[str, Any]) -> tuple[int, int]:
    """Engines of an auxiliary model, and GPUs of each. Raises NotANumber."""
    engines, size = (model.get(key) or 1 for key in ("engine_num", "tensor_parallel_size"))
    return integer(AUXILIARY, engines), integer(AUXILIARY, size)
