"""ROLL's batches, micro-batches and the length of a run."""

from collections.abc import Iterator

from kubectl_rljob.importer.amounts import Length, Warmup
from kubectl_rljob.importer.megatron import Layout
from kubectl_rljob.importer.roll.layout import config, machine, role
from kubectl_rljob.importer.settings import Settings
from kubectl_rljob.importer.table import Field, Said
from kubectl_rljob.importer.values import divisor


def samples(settings: Settings) -> int:
    """Samples of an optimizer step."""
    nodes, ranks = machine(settings)
    t, copies = f"{role(settings)}training_args.", max(1, nodes * ranks // Layout.of(settings, config(settings)).copy)
    return (
        settings.integer(f"{t}per_device_train_batch_size")
        * settings.integer(f"{t}gradient_accumulation_steps")
        * copies
    )


def tokens(settings: Settings, longest: int) -> Iterator[Said]:
    r, least = role(settings), Layout.of(settings, config(settings)).aligned(longest)
    dynamic, packed = (
        f"{r}max_tokens_per_microbatch_in_train",
        f"{r}sequence_packing_args.max_packed_sequence_length_train",
    )
    each = f"{r}training_args.per_device_train_batch_size"
    if settings[f"{r}use_dynamic_batching_in_train"] and dynamic in settings:
        found, key = settings.integer(dynamic), dynamic
    elif settings[f"{r}use_sequence_packing"] and packed in settings:
        found, key = settings.integer(packed), packed
    else:
        found, key = settings.integer(each) * longest, each
    why = f"at least {least} tokens of the longest sample"
    yield settings.field("train.tokensPerMicroBatch", max(found, least), key, why=why)


def learning(settings: Settings, per_step: int, updates: int) -> Iterator[Said]:
    t = f"{role(settings)}training_args."
    length = Length("max_steps", f"{t}num_train_epochs", per_step)
    yield from length.said(settings)
    yield from Warmup(f"{t}warmup_steps", f"{t}warmup_ratio").said(settings, length.total(settings), updates)


def amounts(settings: Settings) -> Iterator[Said]:
    prompts, group = settings.integer("rollout_batch_size"), settings.integer("num_return_sequences_in_group")
    updates = max(1, round(prompts * group / max(1, samples(settings))))
    t = "actor_train.training_args."
    keys = (f"{t}per_device_train_batch_size", f"{t}gradient_accumulation_steps")
    exact = divisor(prompts, updates)
    if exact * samples(settings) != prompts * group:
        yield settings.changed(
            keys[1],
            f"{prompts * group // exact} samples in an optimizer step: mini-batches are of whole prompts, and alike",
        )
    yield settings.field("train.miniBatches", exact, *keys, why=f"{samples(settings)} of {prompts * group} samples")
    updates = exact * settings.integer("ppo_epochs")
    yield from learning(settings, prompts, updates)
    if settings["adv_estimator"] == "gae":
        yield from _critic(settings, prompts, updates)
    longest = settings.integer("prompt_length") + response(settings)
    yield from tokens(settings, longest)
    yield Field("rollout.sampling.maxTokens", response(settings), settings.origin("response_length"))


def _critic(settings: Settings, prompts: int, updates: int) -> Iterator[Said]:
    c, total = "critic.training_args.", Length("max_steps", f"{role(settings)}training_args.num_train_epochs", prompts)
    keys = f"{c}warmup_steps", f"{c}warmup_ratio"
    yield from Warmup(*keys, "critic.optimizer.warmupSteps").said(settings, total.total(settings), updates)


def response(settings: Settings) -> int:
    if "response_length" in settings:
        return settings.integer("response_length")
    return settings.integer("sequence_length") - settings.integer("prompt_length")
