"""Advantage estimators by their name in spec.algorithm.advantage."""

from collections.abc import Callable

from rljob_api.spec.algorithm import AlgorithmSpec
from rljob_trainer.algorithm.advantage.episodes import Advantages, Episodes
from rljob_trainer.algorithm.advantage.gae import gae
from rljob_trainer.algorithm.advantage.grpo import grpo
from rljob_trainer.algorithm.advantage.opo import opo
from rljob_trainer.algorithm.advantage.reinforce import reinforce, reinforce_with_baseline
from rljob_trainer.algorithm.advantage.remax import remax
from rljob_trainer.algorithm.advantage.rloo import rloo

ADVANTAGES: dict[str, Callable[[Episodes, AlgorithmSpec], Advantages]] = {
    "grpo": grpo,
    "rloo": rloo,
    "reinforce++": reinforce,
    "reinforce++-baseline": reinforce_with_baseline,
    "gae": gae,
    "opo": opo,
    "remax": remax,
}

__all__ = ["ADVANTAGES", "Advantages", "Episodes"]
