"""The layer that guesses the token after the next (megatron-core's multi-token prediction) computes only in passes that train it, its loss is that of
`config.multi_token`, and tokens of packed rows move up at once.

megatron-core computes the layer in every pass, also where log-probabilities alone are asked for. Its loss is divided by the tokens of a micro-batch,
which would make gradients depend on how a step is packed, and goes into a tracker of its own. It moves tokens up one sequence after the other, which
on a GPU waits for the beginning of each, and a whole step has hundreds. Can go when megatron-core takes the loss as a function.
"""

from typing import Any

import torch

from rljob_trainer.megatron.compat import VERSIONS
from rljob_trainer.patches import Patch


def _where_it_is_trained() -> None:
    from megatron.core.models.gpt import gpt_model

    finish = gpt_model.GPTModel._postprocess

    def finished(
        model: Any, *inputs: Any, mtp_in_postprocess: bool = False, loss_mask: Any = None, **named: Any
    ) -> Any:
        computes = mtp_in_postprocess and loss_mask is not None
        return finish(model, *inputs, mtp_in_postprocess=computes, loss_mask=loss_mask, **named)

    gpt_model.GPTModel._postprocess = finished
    gpt_model.process_mtp_loss = _learnt


def _learnt(
    *, hidden_states: torch.Tensor, loss_mask: Any, output_layer: Any, output_weight: Any, config: Any, **_: Any
) -> Any:
    """The policy's hidden states. `loss_mask`: the targets of MultiTokenLoss.learn; None: the pass trains nothing."""
    if loss_mask is None:
        return hidden_states
    own, guessed = hidden_states.chunk(2)
    return config.multi_token.learn(own, guessed, loss_mask, output_layer, output_weight)


def _move_up_at_once() -> None:
    from megatron.core.transformer import multi_token_prediction

    one_by_one = multi_token_prediction.roll_tensor

    def moved_up(
        tensor: Any, shifts: int = -1, dims: int = -1, cp_group: Any = None, packed_seq_params: Any = None
    ) -> Any:
        if tensor is None or packed_seq_params is None or (cp_group is not None and cp_group.size() > 1):
            return one_by_one(tensor, shifts, dims, cp_group, packed_seq_params)
        moved = tensor.roll(shifts, dims)
        moved[..., packed_seq_params.cu_seqlens_q[1:].long() - 1] = 0
        return moved, moved.sum()

    multi_token_prediction.roll_tensor = moved_up


_MTP = "megatron/core/transformer/multi_token_prediction.py"
PATCHES = (
    Patch(
        "a loss of its own for the next token but one",
        "megatron-core",
        VERSIONS["megatron-core"],
        _where_it_is_trained,
        replaces={
            "megatron/core/models/gpt/gpt_model.py:GPTModel._postprocess": "f6f7f4e91537d2b9",
            f"{_MTP}:process_mtp_loss": "e299973e967240cd",
            f"{_MTP}:MTPLossAutoScaler": "3994cbfe5592bab7",
            f"{_MTP}:MultiTokenPredictionBlock": "22ecb769e4d82f21",
        },
    ),
    Patch(
        "tokens of packed rows that move up",
        "megatron-core",
        VERSIONS["megatron-core"],
        _move_up_at_once,
        replaces={f"{_MTP}:roll_tensor": "14968cce406b53e4", f"{_MTP}:_roll_tensor_packed_seq": "96fd268185a516bd"},
    ),
)
