"""Training of the layer behind the last one, which guesses the token after the next (arXiv 2412.19437, section 2.2), apart from the policy.

It reads the policy's hidden states, embedding and output layer, and no gradient of its loss reaches them; the norm of its gradient is one of its own
(`grad_norm_group` of megatron-core). So the policy is trained as it is without this layer.
"""

from collections.abc import Iterator
from typing import Any

import torch
from megatron.core import parallel_state as mpu
from megatron.core.transformer.multi_token_prediction import MTPLossAutoScaler

from rljob_trainer.algorithm.objective import LOSS, MetricAccumulator
from rljob_trainer.megatron.logprob import predictions

LAYERS = "num_nextn_predict_layers"
"""The number of these layers in config.json."""
RIGHT = "right"


def is_multi_token(name: str) -> bool:
    """Whether a parameter of megatron-core's belongs to the layer, by its name."""
    return "mtp" in name.split(".")


def policys_parameters(module: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """Names and parameters of a model's chunk without those that only the layer needs: its own, and the copy of the embedding that a stage behind
    the first has for it. With tied weights that copy is also the policy's output layer."""
    copied = not (getattr(module, "pre_process", True) or getattr(module, "share_embeddings_and_output_weights", True))
    for name, parameter in module.named_parameters():
        if not (is_multi_token(name) or (copied and "embedding" in name.split("."))):
            yield name, parameter


class MultiTokenLoss:
    """The cross entropy of the layer's guesses, and its sums over the passes of a step. Ranks send each other the configuration that holds it."""

    def __init__(self, vocabulary: int, device: torch.device) -> None:
        self._vocabulary = vocabulary
        self._nothing = MetricAccumulator.zero((RIGHT,), device)
        self._sums = self._nothing

    def learn(
        self,
        own: torch.Tensor,
        guessed: torch.Tensor,
        targets: torch.Tensor,
        output_layer: Any,
        output_weight: torch.Tensor | None,
    ) -> torch.Tensor:
        """Returns `own`, whose backward pass begins that of the cross entropy as well.

        Args:
            own: hidden states of the policy, and `guessed`: those of the layer, [t, 1, hidden]; with sequence parallelism this rank's share
            targets: [1, t], the token two places behind each; -1: there is none
            output_weight: of a tied output layer
        """
        weight = output_layer.weight if output_weight is None else output_weight
        logits, _ = output_layer(guessed, weight=weight.detach())
        mask, group = (targets[0] >= 0).float(), mpu.get_tensor_model_parallel_group()
        predicted = predictions(logits.squeeze(1), targets[0].clamp(min=0), 1.0, self._vocabulary, group)
        losses = -predicted.log_probs * mask
        self._sums += MetricAccumulator.of(losses.detach().sum(), mask, {RIGHT: predicted.correct * mask})
        attached: torch.Tensor = MTPLossAutoScaler.apply(own, losses)  # scaled by config.mtp_grad_scale_func
        return attached

    def metrics(self, counts: bool) -> dict[str, float]:
        """Since the last call, over all ranks with `counts`. Collective."""
        sums = self._sums.over_world(counts).on_host()
        self._sums = self._nothing
        return {"train/mtp_loss": sums.mean(LOSS), "train/mtp_accuracy": sums.mean(RIGHT)}
