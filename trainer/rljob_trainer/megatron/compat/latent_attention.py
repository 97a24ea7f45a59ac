"""Multi-latent attention whose queries have no latent (DeepSeek-V2-Lite, Moonlight). megatron-core gives their projection a norm of its own
(core/transformer/mla_qk_norm_config.py:147), which the models do not have, and megatron-bridge has no tensor for it.

Can go with the release of megatron-bridge that holds NVIDIA-NeMo/Megatron-Bridge#5262, which leaves it out for these two families.
"""

from typing import Any

from rljob_trainer.megatron.compat import VERSIONS
from rljob_trainer.patches import Patch


def _project_queries_as_they_are() -> None:
    from megatron.core.transformer.mla_qk_norm_config import QKNormConfigResolver

    resolve = QKNormConfigResolver._resolve_mla_qk_layernorm

    def without_norm(self: Any) -> dict[str, Any]:
        plain = {} if self.has_q_lora else {"linear_q_proj": self.submodules.linear_q_proj or self.linear_impl}
        return resolve(self) | plain

    QKNormConfigResolver._resolve_mla_qk_layernorm = without_norm


PATCHES = (
    Patch(
        "queries without a latent",
        "megatron-core",
        VERSIONS["megatron-core"],
        _project_queries_as_they_are,
        replaces={
            "megatron/core/transformer/mla_qk_norm_config.py:QKNormConfigResolver._resolve_mla_qk_layernorm": "2fa12323bd91d0a2"
        },
    ),
)
