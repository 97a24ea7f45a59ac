"""ROLL's SFT and DPO: `task: sft` and `dpo`."""

from collections.abc import Iterator

from rljob_import.megatron import Layout
from rljob_import.roll.batches import learning, samples, tokens
from rljob_import.roll.layout import config, role
from rljob_import.settings import Settings
from rljob_import.table import Field, Said


def supervised(settings: Settings) -> Iterator[Said]:
    dpo, batch = role(settings) == "actor_train.", samples(settings)
    yield Field("task", "dpo" if dpo else "sft", "ROLL's pipeline")
    t = f"{role(settings)}training_args."
    yield settings.field(
        "train.samplesPerStep",
        batch,
        f"{t}per_device_train_batch_size",
        f"{t}gradient_accumulation_steps",
        why="x data-parallel ranks",
    )
    yield from learning(settings, batch, 1)
    longest = Layout.of(settings, config(settings)).aligned(settings.integer("sequence_length")) * (2 if dpo else 1)
    yield from tokens(settings, longest)
    if dpo and settings["ipo"]:
        yield settings.field("dpo.loss", "ipo", "ipo")
    if not dpo and "query_key" in settings:
        yield settings.field("data.format", "alpaca", "prompt_key", "query_key", "response_key")
    elif not dpo:
        yield settings.field("data.format", "columns", "prompt_key")
        yield settings.field("data.promptKey", settings["prompt_key"], "prompt_key")
        if "response_key" in settings:
            yield settings.field("data.responseKey", settings["response_key"], "response_key")
