"""Models on gangs of their own: the trainer's rules about ranks, layouts and keys of Megatron, for each gang; and settings that only a gang reads."""

from collections.abc import Iterator

from rljob_api import names
from rljob_api.base import Model
from rljob_api.rules import data, keys, layout
from rljob_api.rules.engine import Check, Violation, as_given, constant
from rljob_api.rules.layout import JudgedRanks
from rljob_api.spec import RLJobSpec
from rljob_api.spec.processes import GangSpec
from rljob_api.spec.roles import CriticSpec, Offload

RECOMPUTE = {"recompute": CriticSpec.model_fields["recompute"]}


def gang_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """Violations, by other models' gangs, of the rules that hold for the ranks of any model."""
    for role in spec.gangs:
        ranks = JudgedRanks.of(spec, role)
        for rule in layout.SIZE_RULES:
            yield from rule.violations(ranks.settings, ranks.at_own)
        for rule in data.token_rules(constant(ranks.settings.tokens_per_micro_batch), constant(ranks.layout.alignment)):
            yield from rule.violations(spec, ranks.at)
        for check in (*layout.RANKS_CHECKS, *keys.RANKS_CHECKS):
            yield from check(ranks)


def unread_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """Settings of a gang for a model that is on the trainer's ranks."""
    for field, model in _models(spec):
        if model.processes_per_node is not None:
            continue
        for name, info in (GangSpec.model_fields | RECOMPUTE).items():
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


def update_of_critic_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """What layout.OBJECT_RULES say of the policy's offloading, of the critic's on the same ranks."""
    if spec.critic and spec.critic.offload.update and spec.critic.offload.optimizer:
        rule = "with spec.critic.offload.update optimizer states are never on the GPU, from where they could be moved"
        yield Violation("spec.critic.offload.optimizer", "true", rule, "remove it, or spec.critic.offload.update")


def _models(spec: RLJobSpec) -> Iterator[tuple[str, GangSpec]]:
    """Models that may have a gang of their own, with the paths of their sections."""
    if spec.critic:
        yield f"spec.{names.ROLE_CRITIC}", spec.critic
    yield f"spec.{names.ROLE_REFERENCE}", spec.reference
    for i, reward in enumerate(spec.rewards):
        if reward.model:
            yield spec.field_of(names.reward_role(i)), reward.model


RULES: tuple[Check, ...] = (gang_violations, unread_violations, offload_of_gang_violations, update_of_critic_violations)
