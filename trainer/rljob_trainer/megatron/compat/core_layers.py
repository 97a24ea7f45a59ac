"""Layers of megatron-core: those in plain torch, gated delta nets, attention with latents, routers, and the layer that guesses tokens.

`use_transformer_engine=True` means the torch layers of plain_torch/layers.py where Transformer Engine is absent. Packed rows are rotated at once
wherever its fused kernel does not do it: also with YaRN, with latents and with the positions of images.

megatron-core's extension point is `BackendSpecProvider`, but `get_gpt_decoder_block_spec` takes no instance of one: it names Transformer Engine's
(core/models/gpt/gpt_layer_specs.py). Its rotation of packed sequences goes one sequence after the other (rope_utils.py), which takes half of a
step's time when there are hundreds of short ones, and on a GPU waits for the beginning of each (NVIDIA/Megatron-LM#5243 changed it, and kept the
loop). Can go when the block spec takes a backend, and the loop is gone.

Gated delta nets (Qwen3-Next, Qwen3.5): kernels of flash-linear-attention on a GPU where the image has it, plain torch otherwise.

megatron-core refuses to make the layer without that package, and its own implementation in torch does not take packed sequences
(core/ssm/gated_delta_net/common.py, torch_chunk_gated_delta_rule). The package is imported by the first call, because its import asks the driver
for the GPU, and a process that has done so cannot fork ranks (rank/main.py keeps megatron-core and transformers from it). Can go when
megatron-core takes packed sequences in torch.

Multi-latent attention whose queries have no latent (DeepSeek-V2-Lite, Moonlight). megatron-core gives their projection a norm of its own
(core/transformer/mla_qk_norm_config.py:147), which the models do not have, and megatron-bridge has no tensor for it.

Can go with the release of megatron-bridge that holds NVIDIA-NeMo/Megatron-Bridge#5262, which leaves it out for these two families.

Routers with a bias (gpt-oss) add it to their product in float32, and not inside of it.

megatron-core passes Transformer Engine a bias in bfloat16 for a result in float32 (core/transformer/moe/moe_utils.py, RouterGatingLinearFunction).
cuBLASLt reads it in the type of the result: two biases become one number, and the rest is memory behind them. Tokens go to other experts, without an
error. Can go when Transformer Engine reads the bias in its own type (NVIDIA/TransformerEngine#3562).

The layer that guesses the token after the next (megatron-core's multi-token prediction) computes only in passes that train it, its loss is that of
`config.multi_token`, and tokens of packed rows move up at once.

megatron-core computes the layer in every pass, also where log-probabilities alone are asked for. Its loss is divided by the tokens of a micro-batch,
which would make gradients depend on how a step is packed, and goes into a tracker of its own. It moves tokens up one sequence after the other, which
on a GPU waits for the beginning of each, and a whole step has hundreds. Can go when megatron-core takes the loss as a function.
"""

import functools
import importlib
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch

from rljob_trainer.megatron.compat import VERSIONS
from rljob_trainer.patches import Patch


def lacks_transformer_engine() -> bool:
    return not has_transformer_engine()


def has_transformer_engine() -> bool:
    """As megatron-core sees it."""
    from megatron.core.models.gpt import gpt_layer_specs

    return bool(gpt_layer_specs.HAVE_TE)


def _use_torch_layers() -> None:
    from megatron.core.extensions import transformer_engine_spec_provider
    from megatron.core.models.gpt import (
        experimental_attention_variant_module_specs,
        gpt_layer_specs,
        moe_module_specs,
    )
    from megatron.core.transformer import multi_latent_attention

    from rljob_trainer.megatron.plain_torch.layers import TELinear, TENorm, TorchBackend

    specs = (gpt_layer_specs, moe_module_specs, experimental_attention_variant_module_specs)
    for module in (*specs, transformer_engine_spec_provider):
        module.TESpecProvider = TorchBackend
    gpt_layer_specs.TENorm = TENorm
    multi_latent_attention.TELinear = TELinear


def _rotate_at_once() -> None:
    from megatron.core.models.common.embeddings import rope_utils

    from rljob_trainer.megatron.plain_torch.attention import rotate_packed

    rope_utils._apply_rotary_pos_emb_thd = rotate_packed


PACKAGE, PLAIN = "fla", "rljob_trainer.megatron.plain_torch.gated_delta_net"
KERNELS = {"causal_conv1d": "fla.modules.convolution", "chunk_gated_delta_rule": "fla.ops.gated_delta_rule"}
"""Where the package has what megatron-core calls outside of what it compiles; `l2norm` is compiled, so torch's is as good."""
_FOLDER = "megatron/core/ssm/gated_delta_net"


def _choose_at_the_first_call() -> None:
    modules: list[Any] = [importlib.import_module(f"megatron.core.ssm.gated_delta_net.{m}") for m in ("common", "gdn")]
    ours = {"l2norm": _function(PLAIN, "l2norm")} | {name: _chosen(name) for name in KERNELS}
    for module in modules:
        for name, function in ours.items():
            if hasattr(module, name):
                setattr(module, name, function)
        module.HAVE_FLA = True


def _chosen(name: str) -> Callable[..., Any]:
    @functools.cache
    def function() -> Callable[..., Any]:
        kernels = torch.cuda.is_available() and find_spec(PACKAGE) is not None
        return _function(KERNELS[name] if kernels else PLAIN, name)

    def call(*arguments: Any, **options: Any) -> Any:
        return function()(*arguments, **options)

    return call


def _function(module: str, name: str) -> Callable[..., Any]:
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return function


def _project_queries_as_they_are() -> None:
    from megatron.core.transformer.mla_qk_norm_config import QKNormConfigResolver

    resolve = QKNormConfigResolver._resolve_mla_qk_layernorm

    def without_norm(self: Any) -> dict[str, Any]:
        plain = {} if self.has_q_lora else {"linear_q_proj": self.submodules.linear_q_proj or self.linear_impl}
        return resolve(self) | plain

    QKNormConfigResolver._resolve_mla_qk_layernorm = without_norm


def _add_after_the_product() -> None:
    from megatron.core.transformer.moe import router

    product = router.router_gating_linear

    def logits(
        inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype
    ) -> torch.Tensor:
        logits_without_bias = product(inputs, weight, None, dtype)
        return logits_without_bias if bias is None else logits_without_bias + bias.to(dtype)

    router.router_gating_linear = logits


_UTILS = "megatron/core/transformer/moe/moe_utils.py"


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
        "torch layers",
        "megatron-core",
        VERSIONS["megatron-core"],
        _use_torch_layers,
        needed=lacks_transformer_engine,
        replaces={
            "megatron/core/models/gpt/gpt_layer_specs.py:get_gpt_decoder_block_spec": "4b3a68e9518398f2",
            "megatron/core/models/gpt/moe_module_specs.py:get_moe_module_spec": "6c7037f444c4f2cd",
            "megatron/core/models/backends.py:BackendSpecProvider": "065bec3f75417d4f",
        },
    ),
    Patch(
        "rotation of packed rows",
        "megatron-core",
        VERSIONS["megatron-core"],
        _rotate_at_once,
        replaces={"megatron/core/models/common/embeddings/rope_utils.py:_apply_rotary_pos_emb_thd": "4dc3849cbc49a142"},
    ),
    Patch(
        "gated delta nets",
        "megatron-core",
        VERSIONS["megatron-core"],
        _choose_at_the_first_call,
        replaces={
            f"{_FOLDER}/common.py:_GDNBase._prepare_input_for_gated_delta_rule": "ce63c3de0fbe5652",
            f"{_FOLDER}/gdn.py:GatedDeltaNet.forward": "e4cd9a2d0a9e061a",
        },
    ),
    Patch(
        "queries without a latent",
        "megatron-core",
        VERSIONS["megatron-core"],
        _project_queries_as_they_are,
        replaces={
            "megatron/core/transformer/mla_qk_norm_config.py:QKNormConfigResolver._resolve_mla_qk_layernorm": "2fa12323bd91d0a2"
        },
    ),
    Patch(
        "biases of routers",
        "megatron-core",
        VERSIONS["megatron-core"],
        _add_after_the_product,
        replaces={
            f"{_UTILS}:router_gating_linear": "a89388be167ed9d0",
            f"{_UTILS}:RouterGatingLinearFunction": "e8da0e16741cbe9a",
            "megatron/core/transformer/moe/router.py:Router.gating": "3cd294d0dde76a7b",
        },
    ),
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
