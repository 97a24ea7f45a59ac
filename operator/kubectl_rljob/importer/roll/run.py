"""What all of ROLL's pipelines say alike: model, files, directory, trackers, variables."""

from collections.abc import Iterator

from kubectl_rljob.importer import places
from kubectl_rljob.importer.adapters import adapters
from kubectl_rljob.importer.roll.layout import role
from kubectl_rljob.importer.settings import Settings
from kubectl_rljob.importer.table import Field, Said
from kubectl_rljob.importer.values import items

HANDED_ON = ("NCCL_", "VLLM_", "TORCH_", "WANDB_", "HF_")


def sources(settings: Settings) -> Iterator[Said]:
    yield from places.found(settings, "model.path", "pretrain")
    yield from places.files(settings, "data.train", f"{role(settings)}data_args.file_name")
    yield from places.files(settings, "data.validation", "validation.data_args.file_name")
    yield from places.name(settings, "exp_name")
    key = "checkpoint_config.output_dir" if "checkpoint_config.output_dir" in settings else "output_dir"
    yield from places.written(settings, "checkpoint.path", key, "output")
    yield from places.kept(settings, "max_ckpt_to_keep")
    if "eval_steps" in settings and "validation.data_args.file_name" in settings:
        yield settings.field("evaluation.everySteps", max(0, settings.integer("eval_steps")), "eval_steps")


def tuning(settings: Settings) -> Iterator[Said]:
    """LoRA, where the model's section of the role that learns has a rank."""
    m = f"{role(settings)}model_args."
    if settings[f"{m}lora_rank"]:
        rank = settings.integer(f"{m}lora_rank")
        alpha = settings.integer(f"{m}lora_alpha") if settings[f"{m}lora_alpha"] else 2 * rank
        yield from adapters(settings, f"{m}lora_rank", f"{m}lora_alpha", f"{m}lora_target", (rank, alpha))


def weights(settings: Settings) -> Iterator[Said]:
    """Shares of the files, which ROLL writes as a text with commas."""
    key, files = f"{role(settings)}data_args.interleave_probs", f"{role(settings)}data_args.file_name"
    if key not in settings:
        return
    count = len(items(settings[files])) if settings[files] else 0
    try:
        shares = [float(share) for share in str(settings[key]).split(",")]
    except ValueError:
        shares = []
    if len(shares) != count or min(shares, default=0) <= 0:
        yield settings.lacking(key, f"data.weights has one number above 0 for each of the {count} files")
    elif count > 1:
        yield settings.field("data.weights", shares, key)


def environment(settings: Settings) -> Iterator[Said]:
    given = {name: g for name, g in settings.below("system_envs").items() if name.startswith(HANDED_ON)}
    env = [{"name": name, "value": str(g.value)} for name, g in given.items()]
    if settings["track_with"] == "wandb":
        env.append({"name": "WANDB_PROJECT", "value": str(settings["tracker_kwargs.project"] or settings["exp_name"])})
        yield settings.changed("track_with", "needs WANDB_API_KEY from a Secret in spec.envFrom")
    elif settings["track_with"] not in (None, "tensorboard", "stdout"):
        yield settings.lacking("track_with", "metrics are written to TensorBoard and metrics.jsonl")
    if env:
        yield Field("env", env, "system_envs, track_with")
