"""`use_transformer_engine=True` means the torch layers of layers.py where Transformer Engine is absent. Packed rows are rotated at once wherever its
fused kernel does not do it: also with YaRN, with latents and with the positions of images.

megatron-core's extension point is `BackendSpecProvider`, but `get_gpt_decoder_block_spec` takes no instance of one: it names Transformer Engine's
(core/models/gpt/gpt_layer_specs.py). Its rotation of packed sequences goes one sequence after the other (rope_utils.py), which takes half of a
step's time when there are hundreds of short ones, and on a GPU waits for the beginning of each (NVIDIA/Megatron-LM#5243 changed it, and kept the
loop). Can go when the block spec takes a backend, and the loop is gone.
"""

from rljob_trainer.megatron.compat import VERSIONS
from rljob_trainer.patches import Patch


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


PATCHES = (
    Patch(
        "torch layers",
        "megatron-core",
        VERSIONS["megatron-core"],
        _use_torch_layers,
        needed=lambda: not has_transformer_engine(),
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
)
