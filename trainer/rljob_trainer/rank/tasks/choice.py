"""Which objective and which source each task has."""

from collections.abc import Callable

from rljob_api.spec import RLJobSpec
from rljob_trainer.algorithm.cross_entropy import CrossEntropyObjective
from rljob_trainer.algorithm.objective import Objective
from rljob_trainer.algorithm.pairs import RewardModelObjective
from rljob_trainer.algorithm.policy import PolicyObjective
from rljob_trainer.algorithm.preference import PreferenceObjective
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.megatron.engine import Engine
from rljob_trainer.rank.driver_client import DriverClient
from rljob_trainer.rank.publication import Publication
from rljob_trainer.rank.scatter import Scatter
from rljob_trainer.rank.tasks import Source
from rljob_trainer.rank.tasks.rl import RolloutSource
from rljob_trainer.rank.tasks.supervised import ExampleSource
from rljob_trainer.rank.weights.publisher import Senders
from rljob_trainer.wire.collective import Ranks

OBJECTIVES: dict[str, Callable[[RLJobSpec], Objective]] = {
    "rl": PolicyObjective,
    "sft": CrossEntropyObjective,
    "pretrain": CrossEntropyObjective,
    "dpo": PreferenceObjective,
    "rewardModel": lambda spec: RewardModelObjective(),
}


def objective_of(spec: RLJobSpec) -> Objective:
    """The objective of the trained network. Raises ConfigurationError for a user's function that cannot be loaded."""
    return OBJECTIVES[spec.task](spec)


def require_same_files(objective: Objective, ranks: Ranks) -> None:
    """Raise ConfigurationError when ranks have loaded different versions of a user's file. Collective."""
    digests = ranks.gather([file.digest for file in objective.files])
    for i, file in enumerate(objective.files):
        others = [rank for rank, found in enumerate(digests) if found[i] != digests[0][i]]
        if others:
            there, here = digests[others[0]][i][:12], digests[0][i][:12]
            rule = f"ranks {', '.join(map(str, others))} found another file there, sha256 {there}, than rank 0, {here}"
            fix = "mount one volume or ConfigMap at that path in all pods, and restart the job after you change it"
            raise ConfigurationError(file.field, file.path, rule, fix)


def source_of(
    spec: RLJobSpec,
    ranks: Ranks,
    driver: DriverClient | None,
    engine: Engine,
    senders: Senders | None,
    while_waiting: Callable[[], None],
) -> Source:
    """The source of the job's batches.

    Args:
        driver: on rank 0 only
        senders: to the rollouts; None for supervised tasks
        while_waiting: called about once a second while a batch is awaited
    """
    if senders is None:
        return ExampleSource(ranks, driver, engine, while_waiting)
    publication = Publication(spec, ranks, engine, senders, driver)
    scatter = Scatter(ranks, driver, engine, engine.parts)
    return RolloutSource(ranks, driver, scatter, publication, while_waiting)
