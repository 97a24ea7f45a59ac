"""Contradictions in spec.algorithm, critic, reference and optimizers. A setting without effect is refused, since somebody relies on it."""

from collections.abc import Iterator

from rljob_api.rules.engine import ADVANTAGE, TEACHER, Check, Rule, Violation, as_given, field, present, size
from rljob_api.sizing.layout import Amounts
from rljob_api.spec import RLJobSpec
from rljob_api.spec.algorithm import Clip
from rljob_api.spec.roles import Offload, ReferenceSpec
from rljob_api.spec.train import Optimizer

GROUP_ADVANTAGES = ("grpo", "rloo", "reinforce++-baseline", "opo")
"""Advantages that compare the samples of one prompt."""
VALUED = ("gae", "python")
"""Advantages that read the values of a critic."""
ONLY_TAUGHT = TEACHER & size("rewards").equals(0)
"""The job has a teacher and no rewards, so that samples are not compared."""

MOST_DECAY = 0.99
"""Of a moment in bfloat16, whose numbers have 8 bits: a step that changes one by less than 1/256 leaves it as it was."""
OBJECT_RULES = (
    Rule(
        "train.samplesPerPrompt",
        ADVANTAGE.is_in(GROUP_ADVANTAGES).implies((field("train.samplesPerPrompt") > 1) | ONLY_TAUGHT),
        "{0} compares the samples of one prompt",
        "set at least 2",
        (ADVANTAGE,),
    ),
    Rule(
        "algorithm.advantage",
        ADVANTAGE.equals("gae").implies(present("critic")),
        "gae needs the values of a critic",
        "add spec.critic, {} for the defaults",
    ),
    Rule(
        "critic",
        present("critic").implies(ADVANTAGE.is_in(VALUED)),
        "{0} does not read values",
        "remove it, or set spec.algorithm.advantage: gae",
        (ADVANTAGE,),
        "set",
    ),
    *(
        rule
        for name in ("advantage", "loss")
        for rule in (
            Rule(
                f"algorithm.{name}",
                field(f"algorithm.{name}").equals("python").implies(present(f"algorithm.{name}Function")),
                "python needs the function that it calls",
                f"add spec.algorithm.{name}Function with path and function",
            ),
            Rule(
                f"algorithm.{name}Function",
                present(f"algorithm.{name}Function").implies(field(f"algorithm.{name}").equals("python")),
                "{0} does not call it",
                f"remove it, or set spec.algorithm.{name}: python",
                (field(f"algorithm.{name}"),),
                "set",
            ),
        )
    ),
    Rule(
        "algorithm.aggregation",
        field("algorithm.loss").equals("gspo").implies(field("algorithm.aggregation").equals("sequenceMeanTokenMean")),
        "gspo weighs whole responses",
        "set sequenceMeanTokenMean",
    ),
)
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


def router_replay_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """Router replay needs a pass whose routing is recorded, and that is still known when activations are recomputed."""
    correction = spec.algorithm.rollout_correction
    where, value = "spec.algorithm.rolloutCorrection.routerReplay", correction.router_replay
    if value == "none":
        return
    if value == "trainer" and correction.bypass:
        rule = "with bypass nobody measures the old log-probabilities, whose routing would be replayed"
        yield Violation(where, value, rule, "set rollout, or remove one of both")
    elif value == "trainer" and Amounts.of(spec).updates == 1:
        rule = "the routing of a step's only update is that of the old policy"
        yield Violation(where, value, rule, "remove it, or set spec.train.miniBatches or epochsPerStep above 1")
    if value == "rollout" and spec.rollout.agent:
        rule = "the experts of a trajectory of several turns are not returned"
        yield Violation(where, value, rule, "set trainer or none")
    recompute, pipeline = spec.trainer.recompute, spec.trainer.parallelism.pipeline
    again = recompute.granularity == "full" or (recompute.granularity == "selective" and "moe" in recompute.modules)
    if again and pipeline > 1:
        rule = "layers with experts are computed again when other micro-batches have been through them"
        yield Violation(where, value, rule, "remove spec.trainer.recompute, or set pipeline 1")
    if spec.trainer.transformer_config.get("moe_router_fusion"):
        rule = "the fused router of spec.trainer.transformerConfig.moe_router_fusion chooses experts alone"
        yield Violation(where, value, rule, "remove one of both")


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


def _schedule_violations(where: str, o: Optimizer, steps: int | None) -> Iterator[Violation]:
    if o.min_learning_rate > o.learning_rate:
        yield Violation(
            f"{where}.minLearningRate", f"{o.min_learning_rate:g}", "is above learningRate", "set at most learningRate"
        )
    if o.decay == "constant" and o.min_learning_rate:
        yield Violation(
            f"{where}.minLearningRate",
            f"{o.min_learning_rate:g}",
            "a constant rate has no end",
            "set decay, or remove it",
        )
    if o.decay != "constant" and steps is not None and o.warmup_steps >= steps:
        yield Violation(
            f"{where}.warmupSteps",
            str(o.warmup_steps),
            f"the job has {steps} optimizer steps, so that {o.decay} would never begin",
            f"set less than {steps}",
        )


def moments_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """Moments in bfloat16, of policy and critic."""
    yield from _narrow_moments("train", spec.train.optimizer, "trainer", spec.trainer.offload, spec.task)
    if spec.critic:
        holder = "" if spec.critic.processes_per_node else "critic"
        yield from _narrow_moments("critic", spec.critic.optimizer, holder, spec.critic.offload, spec.task)


def _narrow_moments(section: str, o: Optimizer, holder: str, offload: Offload, task: str) -> Iterator[Violation]:
    """`holder`: section of the ranks whose host may take the steps; empty: their GPUs are shared with no other model, and offload nothing."""
    if o.moments_dtype == "float32":
        return
    where = f"spec.{section}.optimizer"
    for name, decay in (("beta1", o.beta1), ("beta2", o.beta2)):
        if decay > MOST_DECAY:
            rule = f"with {where}.momentsDtype: bfloat16 a moment stays as it is, because it changes by less than it is rounded by"
            yield Violation(f"{where}.{name}", f"{decay:g}", rule, f"set at most {MOST_DECAY}")
    if task == "service" or not offload.update:
        rule = "only optimizer steps on the host keep such moments"
        can = holder and task != "service"
        fix = f"set spec.{holder}.offload.update: true, or remove it" if can else "remove it"
        yield Violation(f"{where}.momentsDtype", "bfloat16", rule, fix)


RULES: tuple[Check, ...] = (
    *OBJECT_RULES,
    advantage_violations,
    loss_violations,
    kl_violations,
    sampling_violations,
    router_replay_violations,
    optimizer_violations,
    moments_violations,
)
