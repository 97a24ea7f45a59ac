"""Trinity-RFT's `mode: train` on files: `algorithm_type: sft` and `dpo`."""

from collections.abc import Iterator

from rljob_import.settings import Settings, System
from rljob_import.shared import places, values
from rljob_import.shared.amounts import Length, Warmup
from rljob_import.shared.megatron import Layout
from rljob_import.systems.trinity.rl import decay, layout
from rljob_import.systems.trinity.rows import ACTOR
from rljob_import.systems.trinity.run import files, run, tuning
from rljob_import.systems.trinity.supervised_rows import DPO_ROWS, FILE, FORMAT, LOSS, MICRO, SFT_ROWS
from rljob_import.table import Problem, Said

AGGREGATIONS = {"token-mean": "tokenMean", "seq-mean-token-mean": "sequenceMean"}


def task(settings: Settings) -> str:
    return str(settings["algorithm.algorithm_type"])


def sources(settings: Settings) -> Iterator[Said]:
    key = "algorithm.algorithm_type"
    if settings["mode"] != "train":
        yield settings.problem(f"{settings['mode']} is no mode of {task(settings)}, which has train", "mode")
    yield settings.field("task", task(settings), key)
    yield from files(settings, FILE)
    if settings[f"{FILE}data_selector.selector_type"] == "sequential":
        yield settings.field("data.shuffle", False, f"{FILE}data_selector.selector_type")


def columns(settings: Settings) -> Iterator[Said]:
    """Of a conversation in one column, or of a prompt and its answers in columns of their own."""
    kind = f"{FORMAT}prompt_type"
    if settings[kind] == "messages":
        yield settings.field("data.format", "messages", kind)
        yield settings.field("data.messagesKey", settings[f"{FORMAT}messages_key"], f"{FORMAT}messages_key")
    elif settings[kind] == "plaintext":
        yield settings.field("data.format", "columns", kind)
        yield settings.field("data.promptKey", settings[f"{FORMAT}prompt_key"], f"{FORMAT}prompt_key")
        if task(settings) == "sft":
            yield settings.field("data.responseKey", settings[f"{FORMAT}response_key"], f"{FORMAT}response_key")
    else:
        yield settings.problem(f"{settings[kind]} is neither messages nor plaintext", kind)


def learnt(settings: Settings) -> Iterator[Said]:
    """Without concatenated turns the last answer alone is learnt."""
    key = f"{FORMAT}enable_concatenated_multi_turn"
    if not settings[key] and settings[f"{FORMAT}prompt_type"] == "messages":
        yield settings.field("data.lossOn", "lastAssistant", key)
    aggregation = f"{LOSS}loss_agg_mode"
    if settings[aggregation] not in AGGREGATIONS:
        yield settings.lacking(aggregation, f"the aggregations are {', '.join(AGGREGATIONS)}; token-mean in its place")
    yield settings.field("sft.aggregation", AGGREGATIONS.get(settings[aggregation], "tokenMean"), aggregation)


def penalty(settings: Settings) -> Iterator[Said]:
    """Its KL penalty is added to the loss of DPO, whose beta already holds the policy to the reference."""
    key = "algorithm.kl_loss_fn_args.kl_coef"
    if settings["algorithm.kl_loss_fn"] != "none" and settings.number(key):
        said = f"the loss of dpo has no further penalty; its beta is {settings[f'{LOSS}beta']}"
        yield settings.lacking(key, said)


def amounts(settings: Settings) -> Iterator[Said]:
    batch = settings.integer("buffer.train_batch_size")
    yield settings.field("train.samplesPerStep", batch, "buffer.train_batch_size")
    length = Length("buffer.total_steps", "buffer.total_epochs", batch)
    yield from length.said(settings)
    o = "algorithm.optimizer."
    steps = length.total(settings)
    yield from Warmup(f"{o}lr_warmup_steps", f"{o}lr_warmup_steps_ratio").said(settings, steps, 1)
    yield from decay(settings)
    yield from tokens(settings)


def tokens(settings: Settings) -> Iterator[Said]:
    parts = ("model.max_prompt_tokens", "model.max_response_tokens")
    whole = "model.max_model_len"
    if whole not in settings and not all(part in settings for part in parts):
        yield Problem(whole, f"is missing, and with it {' or '.join(parts)}: nothing says how long a sample may be")
        return
    keys = (whole,) if whole in settings else parts
    longest = sum(settings.integer(key) for key in keys)
    yield settings.field("data.maxTokens", longest, *keys)
    cut, together = Layout.of(settings, f"{ACTOR}megatron."), 2 if task(settings) == "dpo" else 1
    least = cut.aligned(longest) * together
    dynamic, budget = "trainer.use_dynamic_bsz", "trainer.max_token_len_per_gpu"
    key = budget if settings[dynamic] else MICRO
    found = settings.integer(budget) * cut.context if settings[dynamic] else settings.integer(MICRO) * least
    yield settings.field("train.tokensPerMicroBatch", max(found, least), key, why=f"at least {least} tokens")


def machines(settings: Settings) -> Iterator[Said]:
    options, keys = settings.options, ("cluster.node_num", "cluster.gpu_per_node")
    yield settings.field("trainer.nodes", options.nodes or settings.integer(keys[0]), keys[0])
    yield settings.field("trainer.processesPerNode", options.gpus_per_node or settings.integer(keys[1]), keys[1])


def unread(settings: Settings) -> dict[str, str]:
    return {"critic": f"{task(settings)} has no critic", "algorithm": f"{task(settings)} has no rollouts"}


COMMON = (run, tuning, sources, columns, amounts, machines, layout, places.pods)
SFT = System(
    "Trinity-RFT, sft", SFT_ROWS, (*COMMON, learnt), values.TRINITY, lambda s: unread(s) | {"reference": "sft has none"}
)
DPO = System("Trinity-RFT, dpo", DPO_ROWS, (*COMMON, penalty), values.TRINITY, unread)
