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
    "train/policy_loss": "The policy's part of the loss, with the weights of rollout correction.",
    "train/policy_kl": "Mean k3 estimate of how far the step moved the policy so far: per response token; 0 in its first update.",
    "train/kl_coefficient": "Weight of the KL penalty in this step: fixed, or what the controller has made of it.",
    "train/rejected": "Fraction of response tokens that rollout correction left out.",
    "train/clip_fraction": "Fraction of response tokens whose probability ratio was clipped.",
    "train/ratio_mean": "Mean probability ratio of new to old policy, per response token.",
    "train/learning_rate": "Learning rate of the last optimizer step.",
    "train/tokens": "Prompt and response tokens that were trained on.",
    "train_rollout/log_prob_diff_mean": "Mean absolute difference of a token's log-probability in trainer and rollout: weights arrived.",
    "train_rollout/log_prob_diff_max": "Largest such difference in the step.",
    "train_rollout/kl": "Mean k3 estimate of the KL divergence of the rollouts' probabilities from the trainer's old ones, per response token.",
    "train_rollout/ratio_mean": "Mean ratio of the trainer's old to the rollout's probability, per response token: 1 is agreement.",
    "train_rollout/effective_sample_size": "(sum of these ratios)^2 / (tokens x sum of their squares): 1 when all agree.",
    "train_rollout/weight_mean": "Mean weight by which rollout correction multiplied the policy loss; 1 without it.",
    "rollout/replicas": "Rollout servers that had the step's policy.",
    "rollout/redispatched": "Requests that were sent again because a rollout server was lost.",
    "data/epoch": "Passes over the training prompts so far.",
    "time/generate": "Seconds from the first request to the last scored sample.",
    "time/train": "Seconds of log-probabilities, loss, gradients and optimizer.",
    "time/sync": "Seconds of sending the weights to the rollout servers.",
    "time/save": "Seconds that saving the step's checkpoint held up the loop, in this step or later ones.",
    "time/save_background": "Seconds in which rank 0 wrote the step's checkpoint beside the loop.",
    "time/step": "Seconds from the end of the step before to the end of this one.",
    "perf/tokens_per_s": "Prompt and response tokens of the step per second of the whole step.",
}


def require_known(names: Iterable[str]) -> None:
    """Raises KeyError for a metric that nobody has described."""
    unknown = sorted(set(names) - METRICS.keys())
    if unknown:
        raise KeyError(f"not in the table of metrics: {', '.join(unknown)}")
