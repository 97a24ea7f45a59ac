"""Megatron's ranks as rules judge them: the trainer's, or those of the gang of another model. A message names the section that users wrote."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rljob_api import names
from rljob_api.base import Model
from rljob_api.rules.engine import Check, Violation
from rljob_api.rules.fields import names_of
from rljob_api.sizing.layout import Layout
from rljob_api.spec import RLJobSpec
from rljob_api.spec.roles import TrainerSpec

TOKENS = "train.tokensPerMicroBatch"
"""The one setting of ranks that the trainer has outside its section."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """Megatron's ranks, which a rule judges: the trainer's, or those of another model's gang."""

    spec: RLJobSpec
    """The spec as these ranks read it: `trainer` has their settings."""
    section: str
    """Path of the section that users write these settings in, such as `spec.rewards[0].model`."""
    fields: frozenset[str]
    """Names of the fields that the section has."""

    @staticmethod
    def of(spec: RLJobSpec, role: str) -> "Ranks":
        gang = spec.gangs.get(role)
        section: type[Model] = type(gang) if gang else TrainerSpec
        return Ranks(spec.of_gang(role), spec.field_of(role), frozenset(names_of(section)))

    @property
    def layout(self) -> Layout:
        return Layout.of(self.spec, names.ROLE_TRAINER)

    def at(self, path: str) -> str:
        """Where users write, for these ranks, what the trainer's read at a path of the spec."""
        section, _, field = path.partition(".")
        own = section == names.ROLE_TRAINER or path == TOKENS
        return f"{self.section}.{field}" if own and field.split(".")[0] in self.fields else f"spec.{path}"


RanksCheck = Callable[[Ranks], Iterable[Violation]]
"""A rule about Megatron's ranks, whosever they are."""


def of_the_trainer(*checks: RanksCheck) -> tuple[Check, ...]:
    """Rules about ranks, as rules about the trainer's."""
    return tuple(lambda spec, check=check: check(Ranks.of(spec, names.ROLE_TRAINER)) for check in checks)
