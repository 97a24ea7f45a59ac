"""On CPU a mixture of experts computes with the kernels for CPUs also where other layers have adapters.

As soon as a server takes adapters, vLLM 0.32 gives every layer of experts kernels that could have some, and these are Triton's. Adapters of experts
are not offered (rljob_api/families.py). Can go when vLLM chooses by `lora_config.target_modules`, or has such kernels for CPUs.
"""

from typing import Any

from rljob_trainer.patches import Patch
from rljob_trainer.server.compat import VERSIONS
from rljob_trainer.server.compat.forked_engine import on_cpu


def keep_kernels() -> None:
    """Choose the kernels of experts as on servers without adapters."""
    from vllm.model_executor.layers.fused_moe import unquantized_fused_moe_method as method

    select = method.select_unquantized_moe_backend

    def selected(moe_config: Any) -> Any:
        moe_config.is_lora_enabled = False
        return select(moe_config)

    method.select_unquantized_moe_backend = selected


PATCHES = (
    Patch(
        "experts of a model with adapters on CPU",
        "vllm",
        VERSIONS,
        apply=keep_kernels,
        needed=on_cpu,
        replaces={
            "vllm/model_executor/layers/fused_moe/oracle/unquantized.py:select_unquantized_moe_backend": "e47b8142a05cf75a",
            "vllm/model_executor/layers/fused_moe/unquantized_fused_moe_method.py:UnquantizedFusedMoEMethod.__init__": "e733285a5e84adf0",
        },
    ),
)
