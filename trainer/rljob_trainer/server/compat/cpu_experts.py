"""On CPU a server returns the experts that its tokens went to, for router replay.

vLLM 0.26 asks its routers, but on CPU the kernel of a layer chooses experts without them (`--enable-return-routed-experts` then returns zeros). We
report what the kernel chooses. Can go when vLLM's layers on CPU use their routers.
"""

from typing import Any

from rljob_trainer.patches import Patch
from rljob_trainer.server.compat import VERSIONS
from rljob_trainer.server.compat.forked_engine import on_cpu


def report_experts() -> None:
    """Between the layer, which knows to whom to report, and the kernel's choice, which knows what."""
    from vllm.model_executor.layers.fused_moe import cpu_fused_moe
    from vllm.model_executor.layers.fused_moe.runner.moe_runner import MoERunner

    choose, apply = cpu_fused_moe.select_experts, MoERunner._apply_quant_method
    reports: list[Any] = [None]

    def applied(layer: Any, *inputs: Any, **more: Any) -> Any:
        reports[0] = getattr(layer.router, "capture_fn", None)
        return apply(layer, *inputs, **more)

    def chosen(*inputs: Any, **more: Any) -> Any:
        weights, experts = choose(*inputs, **more)
        if reports[0]:
            reports[0](experts)
        return weights, experts

    MoERunner._apply_quant_method, cpu_fused_moe.select_experts = applied, chosen


PATCHES = (
    Patch(
        "experts that are chosen on CPU",
        "vllm",
        VERSIONS,
        apply=report_experts,
        needed=on_cpu,
        replaces={
            "vllm/model_executor/layers/fused_moe/cpu_fused_moe.py:CPUFusedMOE.__call__": "49351c5f3a4ea055",
            "vllm/model_executor/layers/fused_moe/cpu_fused_moe.py:SGLFusedMOE.__call__": "f06d0115abc2c5bb",
            "vllm/model_executor/layers/fused_moe/runner/moe_runner.py:MoERunner._apply_quant_method": "180f86461932e26f",
            "vllm/model_executor/layers/fused_moe/router/base_router.py:BaseRouter.set_capture_fn": "8786a9cdc673ade3",
        },
    ),
)
