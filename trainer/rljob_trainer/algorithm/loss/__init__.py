"""Policy losses by their name in spec.algorithm.loss."""

from collections.abc import Callable

from rljob_api.spec.algorithm import Clip
from rljob_trainer.algorithm.loss.cispo import cispo
from rljob_trainer.algorithm.loss.gspo import gspo
from rljob_trainer.algorithm.loss.ppo import ppo
from rljob_trainer.algorithm.loss.surrogate import PolicyLoss
from rljob_trainer.algorithm.tokens import Sequences, TokenColumns

LOSSES: dict[str, Callable[[TokenColumns, Sequences, Clip], PolicyLoss]] = {"ppo": ppo, "gspo": gspo, "cispo": cispo}
