"""verl's fully asynchronous trainer: prompts are streamed, `data.train_batch_size` is 0, and weights are published after so many mini-batches."""

from collections.abc import Iterator

from rljob_import.settings import Settings
from rljob_import.table import Said
from rljob_import.verl.rows import ACTOR

SIZE, MINI = "data.train_batch_size", f"{ACTOR}ppo_mini_batch_size"
TOTAL = "rollout.total_rollout_steps"
SYNC, FETCHED = "async_training.trigger_parameter_sync_step", "async_training.require_batches"


def streams(settings: Settings) -> bool:
    return settings.integer(SIZE) == 0


def updates(settings: Settings) -> int:
    """Mini-batches between two publications of weights."""
    return max(1, settings.integer(SYNC) * settings.integer(FETCHED))


def prompts(settings: Settings) -> int:
    """Of a step of an RLJob, which ends with a publication."""
    return updates(settings) * settings.integer(MINI) if streams(settings) else settings.integer(SIZE)


def streamed(settings: Settings) -> Iterator[Said]:
    """Batches, and how long it trains: prompts in all, where the file counts them."""
    keys, why = (MINI, FETCHED, SYNC), "prompts between two publications of weights"
    yield settings.field("train.promptsPerStep", prompts(settings), *keys, why=why)
    yield settings.field("train.miniBatches", updates(settings), *keys[1:])
    if TOTAL in settings:
        total = max(1, settings.integer(TOTAL) // max(1, prompts(settings)))
        yield settings.field("train.steps", total, TOTAL, why=f"{prompts(settings)} prompts in a step")
