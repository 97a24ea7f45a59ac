"""The table of metrics: the only list of their names. Sinks and documentation are made from it; a metric that is not here is refused.

Of the numbers in a pod's report the operator keeps those that are known, finite and of use. The others do not cost anybody the report.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, cast

METRICS: dict[str, str] = {
    "reward/mean": "Mean reward of the step's samples.",
    "reward/failed": "Samples that left the step because their reward failed; with dynamic sampling, in all its rounds.",
    "reward/failed_raised": "Failed rewards whose function raised an exception or ended its process.",
    "reward/failed_timeout": "Failed rewards that took longer than timeoutSeconds.",
    "reward/failed_value": "Failed rewards that were not a finite number.",
    "reward/failed_service": "Failed rewards whose service did not answer, or answered with an error status.",
    "reward/overlong_penalty": "Mean penalty for responses near maxTokens.",
    "reward/with_models": "Mean reward including the scores of reward models that Megatron computes, which `reward/mean` leaves out.",
    "reward/zero_std": "Fraction of prompts whose samples all have the same reward, so that nothing is learnt from them.",
    "response_length/mean": "Mean length of the responses, in tokens.",
    "response_length/clipped": "Fraction of responses that were cut off at maxTokens.",
    "sampling/rounds": "Dynamic sampling: rounds of generation that the step took.",
    "sampling/kept": "Dynamic sampling: fraction of the generated prompts whose samples have different rewards.",
    "sampling/all_correct": "Dynamic sampling: fraction of prompts whose samples all have the same reward above 0.",
    "sampling/all_wrong": "Dynamic sampling: fraction of prompts whose samples all have the same reward of 0 or below.",
    "sampling/unscored": "Dynamic sampling: fraction of prompts with fewer than two scored samples.",
    "sampling/too_hard": "Dynamic sampling: fraction of prompts whose rewards differ and whose mean is at or below `difficulty.low`.",
    "sampling/too_easy": "Dynamic sampling: fraction of prompts whose rewards differ and whose mean is at or above `difficulty.high`.",
    "sampling/surplus": "Dynamic sampling: prompts that were fit for training and did not fit into the step.",
    "sampling/continued": "Fraction of samples that more than one policy generated (`partialRollouts`).",
    "sampling/reward": "Dynamic sampling: mean reward of all generated samples, including those that are not trained on.",
    "agent/turns": "Agents: mean responses of the policy in a trajectory.",
    "agent/branches": "Agents: mean sequences of a trajectory: more than 1 where agents rewrote their contexts.",
    "agent/environment_tokens": "Agents: mean tokens of a trajectory behind its prompt that the policy did not write.",
    "agent/tokens_left_out": "Agents: mean tokens that the policy generated for a trajectory and that are not in it.",
    "agent/resumed": "Agents: how often a trajectory continued behind its last turn because its process was lost; a mean.",
    "agent/run_again": "Agents: how often a trajectory began anew because its process was lost; a mean.",
    "agent/failed": "Samples that left the step because their agent failed; with dynamic sampling, in all its rounds.",
    "agent/failed_raised": "Failed trajectories whose function raised an exception or ended its process.",
    "agent/failed_timeout": "Failed trajectories that took longer than timeoutSeconds.",
    "agent/failed_value": "Failed trajectories that were none, or held nothing that the policy generated.",
    "agent/failed_service": "Failed trajectories whose environment did not answer, or answered with an error status.",
    "agent/failed_none": "Samples for which the agent returned None.",
    "evaluation/reward": "Mean, over the held-out prompts of all sets, of the mean reward of a prompt's responses.",
    "evaluation/loss": "Loss on the held-out data, for tasks without rewards.",
    "evaluation/perplexity": "exp of the mean cross entropy per learnt token of the held-out data.",
    "evaluation/accuracy": "Fraction of held-out pairs whose chosen answer is ahead.",
    "evaluation/margin": "Mean reward, or score, of chosen answers of held-out pairs less that of rejected ones.",
    "evaluation/failed": "Held-out samples whose reward failed.",
    "train/loss": "Loss that was minimised, with all its terms: of a policy, of conversations, of pairs.",
    "train/perplexity": "sft and pretrain: exp of the mean cross entropy per learnt token.",
    "train/token_accuracy": "sft and pretrain: fraction of learnt tokens that are the most probable ones.",
    "train/accuracy": "dpo and rewardModel: fraction of pairs whose chosen answer is ahead.",
    "train/margin": "dpo and rewardModel: mean reward, or score, of chosen answers less that of rejected ones.",
    "train/chosen_reward": "dpo: mean implicit reward of chosen answers; rewardModel: mean score.",
    "train/rejected_reward": "dpo: mean implicit reward of rejected answers; rewardModel: mean score.",
    "train/chosen_log_prob": "dpo: mean log-probability of chosen answers.",
    "train/rejected_log_prob": "dpo: mean log-probability of rejected answers.",
    "train/kl": "Mean k3 estimate of the KL divergence from the starting policy, per response token.",
    "train/entropy": "Mean entropy of the policy, per response token, in nats.",
    "train/grad_norm": "Global norm of the gradient before clipping.",
    "train/policy_loss": "Mean policy loss per response token, with the weights of rollout correction.",
    "train/approx_kl": "Mean k3 estimate of the KL divergence from the policy at the start of the step, per token; 0 in the first update.",
    "train/teacher_kl": "KL divergence of the policy from its teacher: mean of log policy - log teacher, or over `topK` tokens.",
    "train/kl_coefficient": "Weight of the KL penalty in this step: fixed, or as the adaptive controller has set it.",
    "train/too_hard": "Fraction of prompts without a gradient because their mean reward is at or below `difficulty.low`; without dynamic sampling.",
    "train/too_easy": "Likewise because their mean reward is at or above `difficulty.high`.",
    "train/skipped": "Optimizer steps that were left out because a loss or gradient was not a finite number (`onNonFinite: skip`).",
    "train/rejected": "Fraction of response tokens that rollout correction left out.",
    "train/clip_fraction": "Fraction of response tokens whose probability ratio was clipped.",
    "train/ratio_mean": "Mean probability ratio of new to old policy, per response token.",
    "train/learning_rate": "Learning rate of the last optimizer step.",
    "train/mtp_loss": "Cross entropy of the layer that `model.multiTokenPrediction` trains, per token that has one two places behind.",
    "train/mtp_accuracy": "Fraction of these tokens that were its likeliest guess.",
    "train/draft_loss": "Cross entropy of the first guess of the draft that `rollout.speculation.learningRate` trains, per token in the loss; "
    "0 where the draft lacks the policy's likeliest token.",
    "train/draft_accuracy": "Fraction of these tokens that were its likeliest first guess.",
    "train/tokens": "Tokens that were trained on, prompts included.",
    "critic/loss": "Loss of the critic: half the squared error of its values, clipped, per response token.",
    "critic/grad_norm": "Global norm of the critic's gradient before clipping.",
    "critic/learning_rate": "Learning rate of the critic's last optimizer step.",
    "critic/clip_fraction": "Fraction of response tokens whose value was clipped.",
    "critic/explained_variance": "1 - Var(returns - values) / Var(returns), before the update: 1 is perfect, 0 no better than a constant.",
    "critic/skipped": "Optimizer steps of the critic that were left out for a loss or gradient that is not finite.",
    "train_rollout/log_prob_diff_mean": "Mean absolute difference of a token's log-probability in trainer and rollout; large if weights are wrong.",
    "train_rollout/log_prob_diff_max": "Largest such difference in the step.",
    "train_rollout/probe_diff_mean": "The same for a few tokens of every updated replica, where samples are older than the policy.",
    "train_rollout/probe_diff_max": "Largest such difference in the replica whose mean is largest.",
    "train_rollout/kl": "Mean k3 estimate of the KL divergence of the rollouts' probabilities from the trainer's old ones, per response token.",
    "train_rollout/ratio_mean": "Mean ratio of the trainer's old to the rollout's probability, per response token; 1 when both agree.",
    "train_rollout/effective_sample_size": "(sum of these ratios)^2 / (tokens x sum of their squares): 1 when all agree.",
    "train_rollout/weight_mean": "Mean weight by which rollout correction multiplied the policy loss; 1 without it.",
    "train_rollout/policy_age": "Mean age of a response token: steps between the policy that generated it and the one it trains; 0: on-policy.",
    "train_rollout/policy_age_max": "Age of the step's oldest response token.",
    "train_rollout/begun_age": "Mean age of the step's trajectories where they began: policy versions before the one that they train.",
    "rollout/groups_waiting": "Complete groups that were not needed when the step's batch was complete; with kept groups they wait for a later step.",
    "rollout/replicas": "Rollout servers that had the step's policy.",
    "rollout/tokens_per_s": "Response tokens that servers returned while the step's batch was awaited, per second.",
    "rollout/acceptance_length": "Tokens of a response that a pass gave where servers guess (`rollout.speculation`): 1 + right guesses / passes.",
    "rollout/redispatched": "Requests that were sent again because a rollout server was lost.",
    "data/epoch": "Passes over the training data.",
    "data/samples": "Rows that the step learns from: samplesPerStep, without those that are left out.",
    "data/too_long": "Rows left out because they are too long: prompts of `rl` than maxPromptTokens, in all; others than maxTokens, so far.",
    "data/duplicates": "Training prompts that repeat the text, answer and data source of an earlier row. They are kept.",
    "data/cut": "Conversations that were cut behind a turn to fit into maxTokens (`overlong: cut`), of the rows read so far.",
    "data/no_assistant": "Rows left out so far because they have no turn of the assistant to learn.",
    "data/masked": "Rows left out so far because marks such as `weight: 0` leave no turn to learn.",
    "data/empty": "Rows left out so far because there is no text to learn.",
    "data/equal_pair": "Pairs left out so far because both answers are the same.",
    "time/data": "Seconds that the ranks waited for the step's batch of examples.",
    "time/starved": "Seconds that the ranks waited for the step's batch of samples.",
    "time/tokenise": "Seconds in which the step's examples were read and tokenised, alongside earlier steps.",
    "time/generate": "Seconds from the first request to the last scored sample.",
    "time/measure": "Seconds that the step's batch took on the gangs of the reference and of reward models.",
    "time/critic": "Seconds in which a critic on a gang of its own learnt from the step's batch, while the policy did.",
    "time/train": "Seconds spent on log-probabilities, loss, gradients and optimizer.",
    "time/sync": "Seconds spent on sending the step's weights to the rollout servers.",
    "time/sync_servers": "Seconds in which a sender of the policy of the step before had nothing to do but to wait for servers: the longest.",
    "time/pause": "Longest time that a rollout server generated nothing to apply the policy of the step before, in seconds.",
    "time/save": "Seconds for which the step's checkpoint stopped the loop, in this step or later ones.",
    "time/save_background": "Seconds in which rank 0 wrote the step's checkpoint in the background.",
    "time/upload": "Seconds in which the step's checkpoint was copied to `checkpoint.upload`, while training continued.",
    "time/step": "Seconds from the end of the previous step to the end of this one.",
    "memory/peak_generate_bytes": "Peak memory of a trainer's device while rollouts generate, over all steps so far; on CPU, of a rank.",
    "memory/peak_score_bytes": "Peak memory while log-probabilities, values and rewards are computed.",
    "memory/peak_train_bytes": "Peak memory during updates.",
    "memory/peak_sync_bytes": "Peak memory while the policy is sent to rollouts.",
    "memory/peak_save_bytes": "Peak memory while a checkpoint is copied.",
    "perf/tokens_per_s": "Tokens of the step, prompts included, per second of the whole step.",
}


REWARD_METRICS, EVALUATION_METRICS = "reward_metrics/", "evaluation_metrics/"
DATA_SOURCES, EVALUATION_DATA_SOURCES = "data_source_reward/", "evaluation_data_source_reward/"
EVALUATION_SETS = "evaluation_sets/"
"""Prefixes of metrics whose names come from a job's reward functions, data and evaluation sets."""
OWN_METRICS = {
    REWARD_METRICS: "Mean, over the step's samples that have it, of a number that a Python reward returned in addition to its `score`.",
    EVALUATION_METRICS: "The same, over the held-out samples.",
    DATA_SOURCES: "Mean reward of the step's samples of a data source.",
    EVALUATION_DATA_SOURCES: "The same, of held-out samples.",
    EVALUATION_SETS: "Of the set before the last `/`, with k responses to each prompt. `avg@k`: mean reward; `pass@k`: probability that one of k "
    "responses is correct; `maj@k`: fraction of prompts whose most frequent answer is correct.",
}
"""Meanings of these metrics, by prefix."""
MOST_REWARD_METRICS = 16
"""Largest number of metrics that a reward function may return, and of data sources."""
MOST_OWN = dict.fromkeys(OWN_METRICS, MOST_REWARD_METRICS) | {EVALUATION_SETS: 64}
"""Largest number of them that a status holds, by prefix."""
OWN_NAME = re.compile(r"[A-Za-z0-9_.@/-]{1,64}")
"""What may follow the prefix."""


def own_name(text: str) -> str:
    """A name that matches OWN_NAME: other characters become `_`, and a name that is too long is cut."""
    return re.sub(r"[^A-Za-z0-9_.@/-]", "_", text)[:64] or "_"


def is_own_metric(name: str) -> bool:
    return any(name.startswith(prefix) and OWN_NAME.fullmatch(name.removeprefix(prefix)) for prefix in OWN_METRICS)


def require_known(names: Iterable[str]) -> None:
    """Raises KeyError for a metric that is not in the table, and is not one that the job names either."""
    unknown = sorted(name for name in set(names) - METRICS.keys() if not is_own_metric(name))
    if unknown:
        raise KeyError(f"not in the table of metrics: {', '.join(unknown)}")


def duration(value: object) -> object:
    """None for what is none of a step."""
    return value if _is_number(value) and 0 <= cast(float, value) < 1e9 else None


def durations(names: Collection[str]) -> Callable[[Any], Any]:
    """A validator that keeps the entries of these names whose values are durations."""

    def kept(given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        return {name: value for name, value in given.items() if name in names and duration(value) is not None}

    return kept


def known(names: Collection[str]) -> Callable[[Any], Any]:
    """A validator that keeps the entries of these names whose values are numbers."""

    def kept(given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        return {name: value for name, value in given.items() if name in names and _is_number(value)}

    return kept


def kept_metrics(given: Any) -> Any:
    """Keeps the metrics of the table, and a bounded number of those that the job names itself."""
    if not isinstance(given, Mapping):
        return given
    own = sorted(name for name in given if isinstance(name, str) and is_own_metric(name) and _is_number(given[name]))
    kept = {name for prefix, most in MOST_OWN.items() for name in [n for n in own if n.startswith(prefix)][:most]}
    return {name: value for name, value in given.items() if (name in METRICS or name in kept) and _is_number(value)}


def kept_points(given: Any) -> Any:
    """Keeps the points that hold numbers: a loss may be NaN, which JSON does not have."""
    if not isinstance(given, list):
        return given
    return [p for p in given if not isinstance(p, Mapping) or _is_point(p)]


def _is_number(value: object) -> bool:
    """Finite, and far from the ends of what a float holds."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -1e300 < value < 1e300


def _is_point(given: Mapping[str, Any]) -> bool:
    unrewarded = given.get("reward") is None
    return all(_is_number(given.get(name)) for name in ("loss", "seconds", *(() if unrewarded else ("reward",))))
