"""Models on gangs of their own: the trainer's rules about ranks, layouts and keys of Megatron, for each gang; and settings that only a gang reads."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from rljob_api import names
from rljob_api.base import Model
from rljob_api.spec import RLJobSpec
from rljob_api.spec.gang import Gang
from rljob_api.spec.roles import CriticSpec, Offload
from rljob_api.validation.layout import RULES as LAYOUT_CHECKS
from rljob_api.validation.object_rules.batches import BATCH_RULES
from rljob_api.validation.object_rules.layout import LAYOUT_RULES
from rljob_api.validation.passthrough import (
    device_violations,
    expert_violations,
    offload_violations,
    split_violations,
    transformer_key_violations,
)
from rljob_api.validation.result import Violation, as_given

TRAINER = f"spec.{names.ROLE_TRAINER}"
TOKENS = "spec.train.tokensPerMicroBatch"
CHECKS: tuple[Callable[[RLJobSpec], Iterable[Violation]], ...] = (
    *(rule.violations for rule in (*LAYOUT_RULES, *BATCH_RULES) if f"spec.{rule.path}".startswith((TRAINER, TOKENS))),
    *LAYOUT_CHECKS,
    transformer_key_violations,
    device_violations,
    expert_violations,
    offload_violations,
    split_violations,
)
"""Rules about the trainer that hold for the gang of any model."""
RECOMPUTE = {"recompute": CriticSpec.model_fields["recompute"]}


def gang_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """Violations of the trainer's rules by other models' gangs."""
    for role in spec.gangs:
        yield from of_gang(spec, role, *CHECKS)


def of_gang(spec: RLJobSpec, role: str, *checks: Callable[[RLJobSpec], Iterable[Violation]]) -> Iterator[Violation]:
    """What rules about the trainer find in a gang, with the gang's own fields in place of the trainer's."""
    own, section = spec.of_gang(role), spec.field_of(role)
    for violation in (v for check in checks for v in check(own)):
        if violation.field.startswith((TRAINER, TOKENS)):
            field = violation.field.replace(TOKENS, f"{section}.tokensPerMicroBatch").replace(TRAINER, section)
            rule, fix = (text.replace(TRAINER, section) for text in (violation.rule, violation.fix))
            yield replace(violation, field=field, rule=rule, fix=fix)


def unread_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """Settings of a gang for a model that is on the trainer's ranks."""
    for field, model in _models(spec):
        if model.processes_per_node is not None:
            continue
        for name, info in (Gang.model_fields | RECOMPUTE).items():
            value = getattr(model, name, info.default)
            if value != info.default:
                shown = as_given(value) if isinstance(value, Model) else str(value)
                rule = "the model is on the trainer's ranks, in their layout, and nothing reads it"
                fix = f"set {field}.processesPerNode for a gang of its own, or remove it"
                yield Violation(f"{field}.{info.alias}", shown, rule, fix)


def offload_of_gang_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """Offloading from GPUs that no other model uses. `offload` of references and reward models is true by default, so it is not refused."""
    critic = spec.critic
    if critic and critic.processes_per_node and critic.offload != Offload():
        rule = "the critic's gang has GPUs of its own, and shares them with no other model"
        yield Violation("spec.critic.offload", as_given(critic.offload), rule, "remove it")


def _models(spec: RLJobSpec) -> Iterator[tuple[str, Gang]]:
    """Models that may have a gang of their own, with the paths of their sections."""
    if spec.critic:
        yield f"spec.{names.ROLE_CRITIC}", spec.critic
    yield f"spec.{names.ROLE_REFERENCE}", spec.reference
    for i, reward in enumerate(spec.rewards):
        if reward.model:
            yield spec.field_of(names.reward_role(i)), reward.model


RULES = (gang_violations, unread_violations, offload_of_gang_violations)
