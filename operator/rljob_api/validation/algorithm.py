"""Contradictions in spec.algorithm, critic, reference, rewards and optimizers. A setting without effect is refused, since somebody relies on it."""

from collections.abc import Iterator

from rljob_api.sizing.layout import Amounts
from rljob_api.spec import RLJobSpec
from rljob_api.spec.algorithm import Clip, Optimizer
from rljob_api.spec.model import RewardSpec
from rljob_api.spec.roles import ReferenceSpec
from rljob_api.validation.result import Violation, as_given

ROUNDING = 1e-6
"""Largest rounding error of a fraction times a number of prompts."""
WIDEST_SEQUENCE_CLIP = 0.05
"""The ratio of a whole response, a geometric mean over its tokens, hardly leaves 1: a clip of 0.2 never binds (arXiv 2507.18071, section 5.1)."""


def advantage_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """Settings that the chosen advantage does not read."""
    a = spec.algorithm
    if a.advantage != "grpo" and (a.group.leave_one_out or not a.group.divide_by_std):
        yield Violation("spec.algorithm.group", as_given(a.group), f"{a.advantage} does not read it", "remove it")
    if a.advantage not in ("gae", "reinforce++") and a.gamma != 1:
        yield Violation("spec.algorithm.gamma", f"{a.gamma:g}", f"{a.advantage} does not discount", "remove it")
    if a.advantage != "gae" and a.gae_lambda != 1:
        yield Violation("spec.algorithm.gaeLambda", f"{a.gae_lambda:g}", f"{a.advantage} does not read it", "remove it")


def loss_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """The loss against clip, aggregation and rollout correction."""
    a = spec.algorithm
    if a.loss == "gspo" and max(a.clip.low, a.clip.high) > WIDEST_SEQUENCE_CLIP:
        yield Violation(
            "spec.algorithm.clip",
            f"{a.clip.low:g}, {a.clip.high:g}",
            "the ratio of gspo is that of a whole response and hardly leaves 1: this clip would never bind",
            "set about {low: 3.0e-4, high: 4.0e-4}",
        )
    if a.loss == "python" and a.clip != Clip():
        yield Violation(
            "spec.algorithm.clip", as_given(a.clip), "python does not read it", "give it in lossFunction.arguments"
        )
    elif a.loss != "ppo" and a.clip.dual is not None:
        yield Violation("spec.algorithm.clip.dual", f"{a.clip.dual:g}", f"{a.loss} has no such bound", "remove it")
    c = spec.rollout_correction
    if c.bypass and c.importance_sampling and c.importance_sampling != "none":
        yield Violation(
            "spec.algorithm.rolloutCorrection.importanceSampling",
            c.importance_sampling,
            "with bypass the clipped ratio is the importance weight already: it would be applied twice",
            "set none, or bypass: false",
        )
    if c.reject and not c.reject.low < 1 < c.reject.high:
        yield Violation(
            "spec.algorithm.rolloutCorrection.reject",
            f"{c.reject.low:g}, {c.reject.high:g}",
            "1 is the ratio of agreement and must lie between them",
            "set low below 1 and high above 1",
        )


def kl_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """The KL penalty and its reference."""
    kl = spec.algorithm.kl
    if kl.coefficient and kl.where == "loss" and kl.estimator == "k1":
        yield Violation(
            "spec.algorithm.kl.estimator",
            "k1",
            "the expected gradient of k1 in the loss is zero: nothing would hold the policy",
            "set k2 or k3, or where: reward",
        )
    if kl.adaptive and not kl.coefficient:
        yield Violation(
            "spec.algorithm.kl.coefficient",
            "0",
            "the controller multiplies it, so that it would stay 0",
            "set where it begins, for example 0.001",
        )
    if spec.task == "rl" and spec.reference != ReferenceSpec() and not spec.has_reference:
        yield Violation(
            "spec.reference",
            as_given(spec.reference),
            "without a KL coefficient, and without spec.algorithm.distillation.reference, no reference is held",
            "set spec.algorithm.kl.coefficient, or remove it",
        )


def sampling_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """Dynamic sampling, difficulty and penalties for length: which samples reach training."""
    a, longest = spec.algorithm, spec.longest_response
    if a.dynamic_sampling and spec.train.samples_per_prompt < 2:
        yield Violation(
            "spec.algorithm.dynamicSampling",
            "set",
            "one sample alone never differs",
            "set samplesPerPrompt of at least 2",
        )
    if not spec.rewards and not spec.rollout.agent:
        for name, given in {"dynamicSampling": a.dynamic_sampling, "difficulty": a.difficulty}.items():
            if given:
                rule = (
                    "without rewards all samples of a prompt are worth the same, so that it would leave out all prompts"
                )
                yield Violation(f"spec.algorithm.{name}", "set", rule, "remove it, or name a reward")
    if a.dynamic_sampling and spec.train.batches.replay:
        yield Violation(
            "spec.algorithm.dynamicSampling", "set", "recorded batches are replayed as they are", "remove it here"
        )
    if a.difficulty and a.difficulty.low >= a.difficulty.high:
        bounds = f"{a.difficulty.low:g}, {a.difficulty.high:g}"
        yield Violation("spec.algorithm.difficulty", bounds, "no mean reward lies between them", "set low below high")
    if a.difficulty and spec.train.samples_per_prompt < 2:
        rule = "the reward of one sample says little about how hard its prompt is"
        yield Violation("spec.algorithm.difficulty", "set", rule, "set samplesPerPrompt of at least 2, or remove it")
    if a.overlong.buffer_tokens >= longest:
        yield Violation(
            "spec.algorithm.overlong.bufferTokens",
            str(a.overlong.buffer_tokens),
            f"the buffer lies within {spec.longest_response_field} = {longest}",
            f"set less than {longest}",
        )


def staleness_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """Tokens of an older policy need a correction for their age."""
    correction, train = spec.rollout_correction, spec.train
    older = {
        "spec.train.staleness": str(train.staleness) if train.staleness else None,
        "spec.train.partialRollouts": train.partial_rollouts and as_given(train.partial_rollouts),
    }
    for field, value in older.items():
        if value and correction.importance_sampling == "none" and not correction.bypass:
            yield Violation(
                field,
                value,
                "tokens are drawn by a policy before the one that they train, and nothing corrects for it",
                "set spec.algorithm.rolloutCorrection.importanceSampling to token, or bypass: true",
            )


def router_replay_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """Router replay needs a pass whose routing is recorded, and that is still known when activations are recomputed."""
    correction = spec.algorithm.rollout_correction
    field, value = "spec.algorithm.rolloutCorrection.routerReplay", correction.router_replay
    if value == "none":
        return
    if value == "trainer" and correction.bypass:
        rule = "with bypass nobody measures the old log-probabilities, whose routing would be replayed"
        yield Violation(field, value, rule, "set rollout, or remove one of both")
    elif value == "trainer" and Amounts.of(spec).updates == 1:
        rule = "the routing of a step's only update is that of the old policy"
        yield Violation(field, value, rule, "remove it, or set spec.train.miniBatches or epochsPerStep above 1")
    if value == "rollout" and spec.rollout.agent:
        rule = "the experts of a trajectory of several turns are not returned"
        yield Violation(field, value, rule, "set trainer or none")
    recompute, pipeline = spec.trainer.recompute, spec.trainer.parallelism.pipeline
    again = recompute.granularity == "full" or (recompute.granularity == "selective" and "moe" in recompute.modules)
    if again and pipeline > 1:
        rule = "layers with experts are computed again when other micro-batches have been through them"
        yield Violation(field, value, rule, "remove spec.trainer.recompute, or set pipeline 1")
    if spec.trainer.transformer_config.get("moe_router_fusion"):
        rule = "the fused router of spec.trainer.transformerConfig.moe_router_fusion chooses experts alone"
        yield Violation(field, value, rule, "remove one of both")


def interrupt_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """Settings with which a response cannot continue under another policy."""
    if spec.rollout.interrupt == "continue" and spec.rollout.sampling.stop:
        yield Violation(
            "spec.rollout.interrupt",
            "continue",
            "a text of spec.rollout.sampling.stop that begins in one part of a response and ends in the next would not be seen",
            "set wait, or remove spec.rollout.sampling.stop",
        )


def over_sampling_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """Over-sampling starts a whole number of prompts, and needs generation."""
    field, train = "spec.train.overSampling", spec.train
    value = f"{train.over_sampling:g}"
    more = train.over_sampling > 1
    if abs(train.over_sampling * train.prompts_per_step - train.prompts_begun) > ROUNDING:
        yield Violation(
            field,
            value,
            f"times spec.train.promptsPerStep = {train.prompts_per_step} is no number of prompts",
            f"set {train.prompts_begun / train.prompts_per_step:g}, which begins {train.prompts_begun}",
        )
    if more and train.batches.replay:
        yield Violation(field, value, "recorded batches are replayed as they are", "remove it")


def partial_rollouts_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """Partial rollouts need prompts that are left over, and settings with which they can continue."""
    field, train = "spec.train.partialRollouts", spec.train
    if train.partial_rollouts is None:
        return
    if train.over_sampling == 1:
        yield Violation(
            field,
            as_given(train.partial_rollouts),
            "a step that begins no more prompts than it needs waits for all of them and leaves nothing over",
            "set spec.train.overSampling, for example to 1.5",
        )
    if train.partial_rollouts.max_age <= train.staleness:
        yield Violation(
            f"{field}.maxAge",
            str(train.partial_rollouts.max_age),
            f"with spec.train.staleness = {train.staleness} every token is as old, so that nothing could wait for the next step",
            f"set at least {train.staleness + 1}",
        )
    if spec.rollout.sampling.stop:
        yield Violation(
            field,
            as_given(train.partial_rollouts),
            "a text of spec.rollout.sampling.stop that begins in one part of a response and ends in the next would not be seen",
            "remove one of both",
        )
    if spec.algorithm.advantage == "remax":
        yield Violation(
            field,
            "with spec.algorithm.advantage remax",
            "the baseline is the greedy response of one policy, the samples would be of several",
            "remove it, or choose another advantage",
        )


def reward_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """Reward models on the trainer's ranks score after generation, so nothing may need their rewards during it."""
    users = {
        "spec.algorithm.dynamicSampling": spec.algorithm.dynamic_sampling is not None,
        "spec.algorithm.advantage": spec.algorithm.advantage == "remax",
        "spec.evaluation": spec.evaluation.takes_place,
    }
    late = [i for i, reward in enumerate(spec.rewards) if reward.model]
    for field in (f for f, used in users.items() if used and late):
        if field == "spec.evaluation" and not _scored_by_models_only(spec.rewards):
            continue
        yield Violation(
            field,
            f"with spec.rewards[{late[0]}].model",
            "a reward model on the trainer's ranks judges after generation, this needs rewards during it",
            "serve the model with vLLM and name it under vllm, or leave this out",
        )


def _scored_by_models_only(rewards: list[RewardSpec]) -> bool:
    return all(reward.model for reward in rewards)


def optimizer_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """Learning-rate schedules of policy and critic."""
    steps = Amounts.of(spec).optimizer_steps  # None: only the trainer knows
    yield from _schedule_violations("spec.train.optimizer", spec.train.optimizer, steps)
    if spec.critic:
        yield from _schedule_violations("spec.critic.optimizer", spec.critic.optimizer, steps)
        if spec.train.steps is not None and spec.critic.warmup_steps >= spec.train.steps:
            yield Violation(
                "spec.critic.warmupSteps",
                str(spec.critic.warmup_steps),
                f"the policy would not learn in any of spec.train.steps = {spec.train.steps} steps",
                "set fewer",
            )


def _schedule_violations(field: str, o: Optimizer, steps: int | None) -> Iterator[Violation]:
    if o.min_learning_rate > o.learning_rate:
        yield Violation(
            f"{field}.minLearningRate", f"{o.min_learning_rate:g}", "is above learningRate", "set at most learningRate"
        )
    if o.decay == "constant" and o.min_learning_rate:
        yield Violation(
            f"{field}.minLearningRate",
            f"{o.min_learning_rate:g}",
            "a constant rate has no end",
            "set decay, or remove it",
        )
    if o.decay != "constant" and steps is not None and o.warmup_steps >= steps:
        yield Violation(
            f"{field}.warmupSteps",
            str(o.warmup_steps),
            f"the job has {steps} optimizer steps, so that {o.decay} would never begin",
            f"set less than {steps}",
        )


RULES = (
    advantage_violations,
    loss_violations,
    kl_violations,
    sampling_violations,
    staleness_violations,
    interrupt_violations,
    router_replay_violations,
    over_sampling_violations,
    partial_rollouts_violations,
    reward_violations,
    optimizer_violations,
)
