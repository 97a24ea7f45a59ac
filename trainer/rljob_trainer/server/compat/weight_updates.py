"""What weight updates and health checks rely on in detail. The code is in server/weights/ and pod/health.py; here is what must not change under it.

    server/weights/updates.py  pauses the scheduler as AsyncLLM.pause_generation does, without its 20 ms of sleep
    server/weights/engine.py   leaves an update at any point, for which vLLM 0.26 has no call: it clears the worker's flag
    server/weights/reload.py   loads over the very tensors that are computed with, where nothing makes others of them after loading; and packs a tied
                        output layer again on CPU, whose packed copy of the old weights vLLM 0.26 leaves in place; and reads from the records
                        of a layer-wise reload which parameters got nothing
    pod/health.py   finds the engine's processes by their titles, and asks the engine's own loop whether it moves

Can go, one by one, when vLLM abandons updates, reloads tied layers on CPU, and reports whether its engine answers.
"""

from rljob_trainer.patches import Patch
from rljob_trainer.server.compat import VERSIONS

PATCHES = (
    Patch(
        "pause without sleep",
        "vllm",
        VERSIONS,
        replaces={
            "vllm/v1/engine/async_llm.py:AsyncLLM.pause_generation": "26d50752161d9f10",
            "vllm/v1/engine/core.py:EngineCoreProc.pause_scheduler": "a3d527875ec6fe97",
        },
    ),
    Patch(
        "updates that are abandoned",
        "vllm",
        VERSIONS,
        replaces={
            "vllm/v1/worker/gpu_worker.py:Worker.start_weight_update": "54013741a9cd56a8",
            "vllm/v1/worker/gpu_worker.py:Worker.finish_weight_update": "931c2c00d26e9b62",
        },
    ),
    Patch(
        "weights loaded in place",
        "vllm",
        VERSIONS,
        replaces={
            "vllm/model_executor/model_loader/utils.py:process_weights_after_loading": "0a50d070d3eeafae",
            "vllm/model_executor/layers/utils.py:dispatch_cpu_unquantized_gemm": "e6384a6a27aee269",
            "vllm/model_executor/layers/fused_moe/oracle/unquantized.py:convert_to_unquantized_kernel_format": "d8f1824817b48054",
            "vllm/model_executor/layers/fused_moe/unquantized_fused_moe_method.py:"
            "UnquantizedFusedMoEMethod.process_weights_after_loading": "5e9b1f554f8fa9a6",
        },
    ),
    Patch(
        "updates that do not reach the model",
        "vllm",
        VERSIONS,
        replaces={
            "vllm/model_executor/model_loader/reload/layerwise.py:initialize_layerwise_reload": "649bea0339770644",
            "vllm/model_executor/model_loader/reload/layerwise.py:make_online_process_loader": "6be74a19a8dfcf47",
            "vllm/model_executor/model_loader/reload/types.py:LayerReloadingInfo": "c049af7043098949",
        },
    ),
    Patch(
        "health of the engine",
        "vllm",
        VERSIONS,
        replaces={
            "vllm/utils/system_utils.py:set_process_title": "72fd894ae65b202c",
            "vllm/v1/engine/core.py:EngineCoreProc.run_busy_loop": "c6cd395d42285c3a",
            "vllm/v1/engine/core.py:EngineCoreProc._process_input_queue": "cfaad55cee4f592d",
            "vllm/v1/engine/async_llm.py:AsyncLLM.is_paused": "427032b207563fc1",
        },
    ),
)
