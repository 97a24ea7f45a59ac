"""What becomes of the keys of Trinity-RFT's YAML with `algorithm_type: sft` and `dpo`."""

from rljob_import.shared.values import IMAGES
from rljob_import.systems.trinity.rows import ACTOR, EVERY_MODEL, OPTIMIZER, REF, RUN, SUBSET, TRAINER
from rljob_import.table import Row, becomes, implied, lacks, read

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
)

MACHINES = (
    read("cluster.node_num", "trainer.nodes", 1),
    read("cluster.gpu_per_node", "trainer.processesPerNode", 8),
    *(implied(f"{section}.*", NO_ROLLOUTS) for section in ("explorer", "synchronizer")),
    read("trainer.use_dynamic_bsz", "train.tokensPerMicroBatch", False),
    read(MICRO, "train.tokensPerMicroBatch", 4, text="x the longest sample or, of dpo, pair"),
    *(row for row in TRAINER if row.key not in ("trainer.use_dynamic_bsz", MICRO)),
)

SFT = (
    read(f"{FORMAT}response_key", "data.responseKey", "response"),
    becomes(f"{FORMAT}image_key", "data.imageKey", text=IMAGES),
    read(f"{FORMAT}enable_concatenated_multi_turn", "data.lossOn", False, text="unset: the last answer is learnt"),
    read(f"{LOSS}loss_agg_mode", "sft.aggregation", "token-mean", also=("algorithm.loss_agg_mode",)),
    *(implied(f"{FORMAT}{key}", "of pairs only") for key in ("chosen_key", "rejected_key")),
    *(implied(f"algorithm.{key}", "sft has no reference") for key in ("kl_loss_fn", "kl_loss_fn_args.*")),
)

DPO = (
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


SFT_ROWS = _first(*RUN, *SFT, *MODEL, *DATA, *ALGORITHM, *MACHINES)
DPO_ROWS = _first(*RUN, *DPO, *MODEL, *DATA, *ALGORITHM, *MACHINES)
