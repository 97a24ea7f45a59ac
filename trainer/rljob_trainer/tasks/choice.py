"""Which task has which objective and which source."""

from collections.abc import Callable

from rljob_api.spec import RLJobSpec
from rljob_trainer.collective import Ranks
from rljob_trainer.driver.client import DriverClient
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


def source_of(
    spec: RLJobSpec,
    ranks: Ranks,
    driver: DriverClient | None,
    engine: Engine,
    senders: Senders | None,
    between: Callable[[], None],
) -> Source:
    """`driver`: on rank 0 only; `senders`: to the rollouts, where the task has some. `between` is called about every second of waiting."""
    if senders is None:
        return ExampleSource(ranks, driver, engine, between)
    publication = Publication(spec, ranks, engine, senders, driver)
    scatter = Scatter(ranks, driver, engine.data_rank, engine.parts)
    return RolloutSource(ranks, driver, scatter, publication, between)
