"""The table of metrics: the only list of their names. Sinks and documentation are made from it; a metric that is not here is refused."""

from collections.abc import Iterable

METRICS: dict[str, str] = {
    "reward/mean": "Mean reward of the step's samples.",
    "reward/failed": "Samples that left the step because their reward raised or timed out.",
    "reward/same": "Fraction of prompts whose samples all got the same reward: nothing is learnt from them.",
    "response_length/mean": "Mean length of the responses, in tokens.",
    "response_length/clipped": "Fraction of responses that were cut off at maxTokens.",
    "evaluation/reward": "Mean reward on the held-out prompts, under the policy of this step.",
    "evaluation/failed": "Held-out samples whose reward raised or timed out.",
    "train/loss": "Loss that was minimised: policy, KL and entropy terms together.",
    "train/kl": "Mean k3 estimate of the KL divergence from the starting policy, per response token.",
    "train/entropy": "Mean entropy of the policy, per response token, in nats.",
    "train/grad_norm": "Global norm of the gradient before clipping.",
    "train/clip_fraction": "Fraction of response tokens whose probability ratio was clipped.",
    "train/ratio_mean": "Mean probability ratio of new to old policy, per response token.",
    "train/learning_rate": "Learning rate of the last optimizer step.",
    "train/tokens": "Prompt and response tokens that were trained on.",
    "train_rollout/log_prob_diff_mean": "Mean absolute difference of a token's log-probability in trainer and rollout: weights arrived.",
    "train_rollout/log_prob_diff_max": "Largest such difference in the step.",
    "rollout/replicas": "Rollout servers that had the step's policy.",
    "rollout/redispatched": "Requests that were sent again because a rollout server was lost.",
    "data/epoch": "Passes over the training prompts so far.",
    "time/generate": "Seconds from the first request to the last scored sample.",
    "time/train": "Seconds of log-probabilities, loss, gradients and optimizer.",
    "time/sync": "Seconds of sending the weights to the rollout servers.",
    "time/save": "Seconds that saving a checkpoint held up the loop.",
    "time/step": "Seconds from the end of the step before to the end of this one.",
    "perf/tokens_per_s": "Prompt and response tokens of the step per second of the whole step.",
}


def require_known(names: Iterable[str]) -> None:
    """Raises KeyError for a metric that nobody has described."""
    unknown = sorted(set(names) - METRICS.keys())
    if unknown:
        raise KeyError(f"not in the table of metrics: {', '.join(unknown)}")
