"""Trinity-RFT's `mode: train` on files: `algorithm_type: sft` and `dpo`: what becomes of each key, and of several together. And how all of its
configurations are written, and which of its tables holds for one."""

from collections.abc import Iterator, Mapping

from rljob_import.readers.hydra import flatten, plain, resolve, tree_of
from rljob_import.settings import Configuration, Settings, System
from rljob_import.shared import places, values
from rljob_import.shared.training import Length, Warmup
from rljob_import.shared.values import IMAGES
from rljob_import.systems.trinity.aggregation import aggregation, aggregation_rows
from rljob_import.systems.trinity.rl import TRINITY, decay, layout, policy_layout
from rljob_import.systems.trinity.rows import ACTOR, EPOCHS, EVERY_MODEL, OPTIMIZER, REF, RUN, SUBSET, TRAINER
from rljob_import.systems.trinity.run import files, run, tuning
from rljob_import.table import Note, Outcome, Problem, Row, Said, becomes, implied, lacks, read

FILE = "buffer.trainer_input.experience_buffer."
FORMAT = f"{FILE}format."
LOSS = "algorithm.policy_loss_fn_args."
MICRO = f"{ACTOR}ppo_micro_batch_size_per_gpu"
NO_ROLLOUTS = "nothing is generated"

MODEL = (
    *(row for row in EVERY_MODEL if row.key != "model.enable_thinking"),
    *(
        read(f"model.{key}", "data.maxTokens", text="max_model_len, else the sum of the others")
        for key in ("max_model_len", "max_prompt_tokens", "max_response_tokens")
    ),
    *(
        implied(f"model.{key}", NO_ROLLOUTS)
        for key in ("temperature", "top_p", "top_k", "repetition_penalty", "min_response_tokens", "critic_model_path")
    ),
)

DATA = (
    read(f"{FILE}path", "data.train"),
    read(f"{FILE}split", "data.train", "train"),
    read(f"{FORMAT}prompt_type", "data.format", "messages"),
    read(f"{FORMAT}messages_key", "data.messagesKey", "message"),
    read(f"{FORMAT}prompt_key", "data.promptKey", "prompt"),
    becomes(f"{FORMAT}system_prompt", "data.chatTemplate.systemPrompt"),
    lacks(f"{FORMAT}system_prompt_key", "system prompts are messages, or the same for all rows"),
    becomes(f"{FORMAT}enable_thinking", "data.chatTemplate.arguments.enable_thinking", also=("model.enable_thinking",)),
    lacks(f"{FORMAT}chat_template", "name a file in data.chatTemplate.path, with the template in it"),
    lacks(f"{FORMAT}tools_key", "the column of tools is `tools`", "tools"),
    lacks(f"{FORMAT}video_key", "models read texts and images only"),
    *(lacks(f"{FORMAT}{key}", "rows have no workflow", "") for key in ("workflow_key", "reward_fn_key")),
    lacks(f"{FORMAT}reply_prefix", "answers are learnt as they are"),
    read(f"{FILE}data_selector.selector_type", "data.shuffle", "sequential", text="its default is sequential"),
    becomes(f"{FILE}data_selector.seed", "data.seed"),
    lacks(f"{FILE}storage_type", "data are files", "file"),
    *(implied(f"{FILE}{key}") for key in ("name", "enable_progress_bar", "max_read_timeout", "index")),
    implied(f"{FILE}subset_name", SUBSET),
    implied(f"{FILE}replay_buffer.*", "of queues only"),
    lacks("buffer.trainer_input.auxiliary_buffers.*", "a job has one task"),
    read("buffer.train_batch_size", "train.samplesPerStep", 32),
    read("buffer.total_epochs", "train.epochs", 1, text="with --rows: train.steps"),
    read("buffer.total_steps", "train.steps", also=("trainer.total_steps",)),
    implied("buffer.batch_size", NO_ROLLOUTS),
    implied("buffer.explorer_input.*", NO_ROLLOUTS),
    *(implied(f"buffer.{key}") for key in ("max_retry_times", "max_retry_interval")),
)

ALGORITHM = (
    read("algorithm.algorithm_type", "task"),
    *OPTIMIZER,
    *(
        implied(f"algorithm.{key}")
        for key in ("repeat_times", "sample_strategy", "sample_strategy_args.*", "entropy_loss_fn", "policy_loss_fn")
    ),
    lacks("algorithm.entropy_loss_fn_args.entropy_coef", "there is no reward for entropy", 0, 0.0),
    lacks(EPOCHS, "a batch is trained once", 1),
)

MACHINES = (
    read("cluster.node_num", "trainer.nodes", 1),
    read("cluster.gpu_per_node", "trainer.processesPerNode", 8),
    *(implied(f"{section}.*", NO_ROLLOUTS) for section in ("explorer", "synchronizer")),
    read("trainer.use_dynamic_bsz", "train.tokensPerMicroBatch", False),
    read(MICRO, "train.tokensPerMicroBatch", 4, text="x the longest sample or, of dpo, pair"),
    *(row for row in TRAINER if row.key not in ("trainer.use_dynamic_bsz", MICRO)),
)

SFT_KEYS = (
    read(f"{FORMAT}response_key", "data.responseKey", "response"),
    becomes(f"{FORMAT}image_key", "data.imageKey", text=IMAGES),
    read(f"{FORMAT}enable_concatenated_multi_turn", "data.lossOn", False, text="unset: the last answer is learnt"),
    *aggregation_rows("sft.aggregation"),
    *(implied(f"{FORMAT}{key}", "of pairs only") for key in ("chosen_key", "rejected_key")),
    *(implied(f"algorithm.{key}", "sft has no reference") for key in ("kl_loss_fn", "kl_loss_fn_args.*")),
)

DPO_KEYS = (
    becomes(f"{FORMAT}chosen_key", "data.chosenKey", "chosen"),
    becomes(f"{FORMAT}rejected_key", "data.rejectedKey", "rejected"),
    implied(f"{FORMAT}response_key", "of single answers only"),
    lacks(f"{FORMAT}image_key", "pairs are texts"),
    implied(f"{FORMAT}enable_concatenated_multi_turn", "of sft only"),
    becomes(f"{LOSS}beta", "dpo.beta", 0.1),
    becomes(f"{LOSS}label_smoothing", "dpo.labelSmoothing", 0.0),
    read("algorithm.kl_loss_fn", "", "k2"),
    read("algorithm.kl_loss_fn_args.kl_coef", "", 0.001, text="dpo.beta holds the policy to the reference"),
    implied(f"{REF}log_prob_micro_batch_size"),
)


def _first(*rows: Row) -> tuple[Row, ...]:
    """Of rows with one key the first."""
    return tuple({row.key: row for row in reversed(rows)}.values())[::-1]


SFT_ROWS = _first(*RUN, *SFT_KEYS, *MODEL, *DATA, *ALGORITHM, *MACHINES)
DPO_ROWS = _first(*RUN, *DPO_KEYS, *MODEL, *DATA, *ALGORITHM, *MACHINES)


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
    yield from aggregation(settings, "sft.aggregation", AGGREGATIONS)


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
    cut, together = policy_layout(settings), 2 if task(settings) == "dpo" else 1
    least = cut.aligned(longest) * together
    dynamic, budget = "trainer.use_dynamic_bsz", "trainer.max_token_len_per_gpu"
    key = budget if settings[dynamic] else MICRO
    count = settings.integer(budget) * cut.context if settings[dynamic] else settings.integer(MICRO) * least
    yield settings.field("train.tokensPerMicroBatch", max(count, least), key, why=f"at least {least} tokens")


def machines(settings: Settings) -> Iterator[Said]:
    options, keys = settings.options, ("cluster.node_num", "cluster.gpu_per_node")
    yield settings.field("trainer.nodes", options.nodes or settings.integer(keys[0]), keys[0])
    yield settings.field("trainer.processesPerNode", options.gpus_per_node or settings.integer(keys[1]), keys[1])


def unread(settings: Settings) -> dict[str, str]:
    return {"critic": f"{task(settings)} has no critic", "algorithm": f"{task(settings)} has no rollouts"}


def unread_of_sft(settings: Settings) -> dict[str, str]:
    return unread(settings) | {"reference": "sft has none"}


COMMON = (run, tuning, sources, columns, amounts, machines, layout, places.pods)
SFT = System("Trinity-RFT, sft", SFT_ROWS, (*COMMON, learnt), values.TRINITY, unread_of_sft)
DPO = System("Trinity-RFT, dpo", DPO_ROWS, (*COMMON, penalty), values.TRINITY, unread)


TABLES = {"sft": SFT, "dpo": DPO}
"""By `algorithm_type`; all others are of reinforcement learning."""


def read_file(text: str, environment: Mapping[str, str]) -> Configuration:
    """YAML of OmegaConf. Raises Unreadable."""
    tree, lost = resolve(tree_of(text), environment)
    values = {k: plain(v) for k, v in flatten(tree).items()}
    table = TABLES.get(str(values.get("algorithm.algorithm_type")), TRINITY)
    return Configuration(table, values, [Note(Outcome.CHANGED, path, "is left out") for path in lost])
