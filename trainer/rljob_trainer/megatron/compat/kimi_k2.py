"""Kimi K2: DeepSeek-V3 under a `model_type` of its own.

transformers 5.17 has no class for it, and the one that comes with the model's files is remote code for an old transformers. It gets DeepSeek-V3's
configuration, also where a job trusts the remote code of its tokenizer: a registered class goes before one of the files. megatron-bridge goes by
`architectures`, where published files name DeepSeek-V3, and not by its own bridge of Kimi K2, whose routers lack the sigmoid. Can go when
transformers has the `model_type`.
"""

from transformers import AutoConfig, DeepseekV3Config

from rljob_trainer.megatron.compat import VERSIONS
from rljob_trainer.patches import Patch


class KimiK2Config(DeepseekV3Config):
    """Of a directory whose config.json says `kimi_k2`."""

    model_type = "kimi_k2"


def register() -> None:
    AutoConfig.register(KimiK2Config.model_type, KimiK2Config, exist_ok=True)


PATCHES = (
    Patch(
        "Kimi K2",
        "megatron-bridge",
        VERSIONS["megatron-bridge"],
        apply=register,
        replaces={
            "megatron/bridge/models/deepseek/deepseek_v3_bridge.py:DeepSeekV3Bridge.provider_bridge": "177fac426c5850d0",
            "megatron/bridge/models/conversion/auto_bridge.py:AutoBridge._causal_lm_architecture": "0cf33cbd26d09134",
        },
    ),
)
