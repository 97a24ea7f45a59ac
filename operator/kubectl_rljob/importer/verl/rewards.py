"""verl's rewards: a function of the user's, a reward model, or the rule that verl chooses by the row's data source."""

from collections.abc import Iterator
from typing import Any

from kubectl_rljob.importer.settings import Settings
from kubectl_rljob.importer.table import Field, Note, Outcome, Said
from kubectl_rljob.importer.values import items, place

FUNCTION, MODEL = "reward.custom_reward_function", "reward.reward_model"
BY_SOURCE = (
    "number for openai/gsm8k, math for all others; verl has rules of its own for code, geometry and search, gives -1 and 1 for"
    " math_dapo, and a little for the format of some"
)
HANDED_ON = ("NCCL_", "VLLM_", "TORCH_", "WANDB_", "HF_")
OWN_VARIABLES = ("VLLM_USE_V1", "VLLM_ATTENTION_BACKEND", "TORCH_NCCL_AVOID_RECORD_STREAMS")
SERVER = "serve it (vllm serve MODEL --runner pooling) and put the server's address in place of this one"


def rewards(settings: Settings) -> Iterator[Said]:
    found: list[dict[str, Any]] = []
    if f"{FUNCTION}.path" in settings:
        path, name = place(settings[f"{FUNCTION}.path"], settings.options.root), settings[f"{FUNCTION}.name"]
        named = {} if name == "compute_score" else {"function": name}
        found.append({"python": {"path": path, "interface": "verl", **named}})
    if settings[f"{MODEL}.enable"]:
        found.append({"vllm": {"url": "http://reward-model:8000"}})
        yield settings.changed(f"{MODEL}.enable", SERVER)
    if found:
        yield settings.field("rewards", found, *(k for k in (f"{FUNCTION}.path", f"{MODEL}.enable") if k in settings))
        return
    yield Field(
        "rewards",
        [{"dataSource": "openai/gsm8k", "rule": "number"}, {"rule": "math"}],
        "verl's rules, chosen by data_source",
    )
    yield Note(Outcome.CHANGED, "rewards by data_source", BY_SOURCE)


def environment(settings: Settings) -> Iterator[Said]:
    """Variables that a script exports, and the project of Weights & Biases."""
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
        yield settings.changed(
            key, "wandb: needs its client in the image, and WANDB_API_KEY from a Secret in spec.envFrom"
        )
    if env:
        yield Field(
            "env",
            env,
            ", ".join([*(f"export {name}" for name in found), *([settings.origin(key)] if key in settings else [])]),
        )
    for other in loggers:
        if other not in ("wandb", "console", "tensorboard", "file"):
            yield settings.lacking(key, f"metrics are written to TensorBoard and metrics.jsonl, not to {other}")


RULES = (rewards, environment)
