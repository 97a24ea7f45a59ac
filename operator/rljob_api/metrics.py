"""The table of metrics: the only list of their names. Sinks and documentation are made from it; a metric that is not here is refused."""

from collections.abc import Iterable

METRICS: dict[str, str] = {
    "reward/mean": "Mean reward of the step's samples.",
    "reward/failed": "Samples that left the step because they could not be judged, with dynamic sampling of all rounds.",
    "reward/failed_raised": "Those of them whose reward function raised or ended its process.",
    "reward/failed_timeout": "Those of them whose judge took longer than timeoutSeconds.",
    "reward/failed_value": "Those of them for which the judge returned something that is not a finite number.",
    "reward/failed_service": "Those of them whose reward service did not answer, or answered with an error status.",
    "reward/overlong_penalty": "Mean of what was taken from rewards for responses near maxTokens.",
    "reward/same": "Fraction of prompts whose samples all got the same reward: nothing is learnt from them.",
    "response_length/mean": "Mean length of the responses, in tokens.",
    "response_length/clipped": "Fraction of responses that were cut off at maxTokens.",
    "sampling/rounds": "Dynamic sampling: rounds of generation that the step took.",
    "sampling/kept": "Dynamic sampling: fraction of the generated prompts whose samples got different rewards.",
    "sampling/all_right": "Dynamic sampling: fraction whose samples all got the same reward, above 0.",
    "sampling/all_wrong": "Dynamic sampling: fraction whose samples all got the same reward, 0 or below.",
    "sampling/unjudged": "Dynamic sampling: fraction with fewer than two judged samples.",
    "sampling/surplus": "Dynamic sampling: prompts that could have been trained on but were more than the step holds.",
    "sampling/reward": "Dynamic sampling: mean reward of all generated samples, also those that are not trained on.",
    "evaluation/reward": "Mean reward on the held-out prompts, under the policy of this step.",
    "evaluation/failed": "Held-out samples whose reward raised or timed out.",
    "train/loss": "Loss that was minimised: policy, KL and entropy terms together.",
    "train/kl": "Mean k3 estimate of the KL divergence from the starting policy, per response token.",
    "train/entropy": "Mean entropy of the policy, per response token, in nats.",
    "train/grad_norm": "Global norm of the gradient before clipping.",
    "train/policy_loss": "Mean policy loss per response token, with the weights of rollout correction.",
    "train/policy_kl": "Mean k3 estimate of how far the step moved the policy so far: per response token; 0 in its first update.",
    "train/kl_coefficient": "Weight of the KL penalty in this step: fixed, or what the controller has made of it.",
    "train/skipped": "Optimizer steps that were left out because a loss or gradient was not a finite number (`onNonFinite: skip`).",
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
    "data/too_long": "Training prompts left out because they are longer than maxPromptTokens.",
    "data/duplicates": "Training prompts whose text, answer and data source an earlier row has too; they are kept.",
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
