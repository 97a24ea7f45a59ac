"""verl's rewards: a function of the user's, a reward model, or the rule that verl chooses by the row's data source."""

from collections.abc import Iterator
from typing import Any

from rljob_import.settings import Settings
from rljob_import.table import Field, Note, Outcome, Said
from rljob_import.values import items, place

FUNCTION, MODEL = "reward.custom_reward_function", "reward.reward_model"
MANAGER = "reward.reward_manager.name"
KWARGS = ("reward.custom_reward_function.reward_kwargs", "custom_reward_function.reward_kwargs")
BY_SOURCE = (
    "number for openai/gsm8k, math for all others; verl has rules of its own for code, geometry and search, gives -1 and 1 for"
    " math_dapo, and a little for the format of some"
)
HANDED_ON = ("NCCL_", "VLLM_", "TORCH_", "WANDB_", "HF_")
OWN_VARIABLES = ("VLLM_USE_V1", "VLLM_ATTENTION_BACKEND", "TORCH_NCCL_AVOID_RECORD_STREAMS")
SERVER = "serve it (vllm serve MODEL --runner pooling) and put the server's address in place of this one"


def rewards(settings: Settings) -> Iterator[Said]:
    found: list[dict[str, Any]] = []
    keys: list[str] = []
    if f"{FUNCTION}.path" in settings:
        entry, keys = _function(settings)
        found.append(entry)
        if settings[MANAGER] == "batch":
            yield settings.lacking(MANAGER, "a reward function gets one response at a time, not lists of them")
    if settings[f"{MODEL}.enable"]:
        found.append({"vllm": {"url": "http://reward-model:8000"}})
        keys.append(f"{MODEL}.enable")
        yield settings.changed(f"{MODEL}.enable", SERVER)
    if found:
        yield settings.field("rewards", found, *keys)
        return
    yield Field(
        "rewards",
        [{"dataSource": "openai/gsm8k", "rule": "number"}, {"rule": "math"}],
        "verl's rules, chosen by data_source",
    )
    yield Note(Outcome.CHANGED, "rewards by data_source", BY_SOURCE)


def _function(settings: Settings) -> tuple[dict[str, Any], list[str]]:
    """The entry of a function of the user's, and the keys that it comes from."""
    name = f"{FUNCTION}.name"
    python: dict[str, Any] = {
        "path": place(settings[f"{FUNCTION}.path"], settings.options.root),
        "interface": "verl",
    }
    if settings[name] != "compute_score":
        python["function"] = settings[name]
    given = {
        f"{prefix}.{key}": (key, found.value)
        for prefix in KWARGS
        for key, found in settings.below(prefix).items()
        if found.value is not None
    }
    if given:
        python["arguments"] = dict(given.values())
    return {"python": python}, [f"{FUNCTION}.path", *([name] if name in settings else []), *given]


def environment(settings: Settings) -> Iterator[Said]:
    """Variables that a script exports, and the projects of trackers."""
    found = {
        name: given
        for name, given in settings.below("export").items()
        if name.startswith(HANDED_ON) and name not in OWN_VARIABLES
    }
    env = [{"name": name, "value": str(given.value)} for name, given in found.items()]
    key = "trainer.logger"
    loggers = items(settings[key])
    if "wandb" in loggers and key in settings:
        env.append({"name": "WANDB_PROJECT", "value": str(settings["trainer.project_name"])})
        yield settings.changed(key, "wandb: needs WANDB_API_KEY from a Secret in spec.envFrom")
    if "mlflow" in loggers:
        env.append({"name": "MLFLOW_EXPERIMENT_NAME", "value": str(settings["trainer.project_name"])})
        yield settings.changed(key, "mlflow: needs the address of its server as MLFLOW_TRACKING_URI in spec.env")
    if env:
        yield Field(
            "env",
            env,
            ", ".join([*(f"export {name}" for name in found), *([settings.origin(key)] if key in settings else [])]),
        )
    for other in loggers:
        if other not in ("wandb", "mlflow", "console", "tensorboard", "file"):
            yield settings.lacking(key, f"metrics are written to TensorBoard and metrics.jsonl, not to {other}")


RULES = (rewards, environment)
