"""Trinity's on-policy distillation: its teacher, one of the auxiliary models, becomes a pool."""

from collections.abc import Iterator, Mapping
from typing import Any

from kubectl_rljob.importer.settings import Settings, integer
from kubectl_rljob.importer.table import Note, Outcome, Problem, Said
from kubectl_rljob.importer.values import items, place

DISTILL = "on_policy_distill"
AUXILIARY = "explorer.auxiliary_models"
POOL_ARGUMENTS = ("max_model_len", "enforce_eager", "enable_prefix_caching", "gpu_memory_utilization")


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
