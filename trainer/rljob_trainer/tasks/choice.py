"""Which task has which objective and which source."""

from collections.abc import Callable

from rljob_api.spec import RLJobSpec
from rljob_trainer.collective import Ranks
from rljob_trainer.driver.client import DriverClient
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.megatron.engine import Engine
from rljob_trainer.objectives.cross_entropy import CrossEntropyObjective
from rljob_trainer.objectives.objective import Objective
from rljob_trainer.objectives.pairs import RewardModelObjective
from rljob_trainer.objectives.policy import PolicyObjective
from rljob_trainer.objectives.preference import PreferenceObjective
from rljob_trainer.publication import Publication
from rljob_trainer.scatter import Scatter
from rljob_trainer.tasks import Source
from rljob_trainer.tasks.rl import RolloutSource
from rljob_trainer.tasks.supervised import ExampleSource
from rljob_trainer.weights.publisher import Senders

OBJECTIVES: dict[str, Callable[[RLJobSpec], Objective]] = {
    "rl": PolicyObjective,
    "sft": CrossEntropyObjective,
    "pretrain": CrossEntropyObjective,
    "dpo": PreferenceObjective,
    "rewardModel": lambda spec: RewardModelObjective(),
}


def objective_of(spec: RLJobSpec) -> Objective:
    """What the trained network learns."""
    return OBJECTIVES[spec.task](spec)


def require_same_files(objective: Objective, ranks: Ranks) -> None:
    """The user's files that the objective is made of are the same on every rank. Collective. Raises ConfigurationError when they are not."""
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
    """`driver`: on rank 0 only; `senders`: to the rollouts, where the task has some. `while_waiting` is called about every second of waiting."""
    if senders is None:
        return ExampleSource(ranks, driver, engine, while_waiting)
    publication = Publication(spec, ranks, engine, senders, driver)
    scatter = Scatter(ranks, driver, engine.data_rank, engine.parts)
    return RolloutSource(ranks, driver, scatter, publication, while_waiting)
