"""What weight updates and health checks rely on in detail. The code is in server/weights/ and pod/health.py; here is what must not change under it.

    server/weights/updates.py   clears the renderer's cache of images and pauses the scheduler as AsyncLLM.pause_generation does, without its
                                20 ms of sleep; and empties the prefix cache before EngineCore.wake_up resumes the scheduler
    server/weights/engine.py    is made by the worker with its model; updates go through calls of its own, because vLLM 0.32 knows one sender, has no
                                call to leave an update, and removes all adapters when it finishes one
    server/weights/adapters.py  puts adapters into the manager that holds them, from memory
    server/weights/reload.py    loads over the very tensors that are computed with, where nothing makes others of them after loading; and packs a
                                tied output layer again on CPU, whose packed copy of the old weights vLLM 0.32 leaves in place, and makes the
                                kernels of experts again there, because vLLM 0.32 packs their weights only then; and reads from the
                                records of a layer-wise reload which parameters got nothing
    server/weights/shadow.py    makes a second model of the same modules, with parameters like those that vLLM had before it transformed them, and
                                has vLLM make of them, a layer at a time, what the first one computes with
    server/guard.py            calls the workers of all data-parallel copies; updates.py pauses and resumes these once, since vLLM would have them
                                compute a step, or wait for each other forever
    pod/health.py               finds the engine's processes by their titles, and asks the engine's own loop whether it moves

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
            "vllm/v1/engine/async_llm.py:AsyncLLM.pause_generation": "4bc5418eee52cc1d",
            "vllm/v1/engine/core.py:EngineCoreProc.pause_scheduler": "d3535cd96ff32545",
            "vllm/v1/engine/core.py:EngineCore.wake_up": "36e1294f7eccc598",
        },
    ),
    Patch(
        "updates through calls of our own",
        "vllm",
        VERSIONS,
        replaces={"vllm/v1/worker/gpu_worker.py:Worker.load_model": "9f1cda3fe65dd3f6"},
    ),
    Patch(
        "a second model of the same modules",
        "vllm",
        VERSIONS,
        replaces={
            "vllm/model_executor/model_loader/reload/layerwise.py:_layerwise_process": "eb1555c17d022951",
            "vllm/model_executor/model_loader/reload/layerwise.py:_place_kernel_tensors": "97f42e39dd63b76f",
            "vllm/model_executor/model_loader/reload/layerwise.py:_get_original_loader": "35013c5f46046a54",
            "vllm/model_executor/model_loader/reload/layerwise.py:finalize_layerwise_processing": "dfb15d38828bcfc9",
            "vllm/model_executor/model_loader/reload/sanitize.py:restore_layer_refs": "980eb6f85425306f",
            "vllm/model_executor/model_loader/reload/meta.py:capture_layer_to_meta": "39f11f879548e657",
        },
    ),
    Patch(
        "adapters from memory",
        "vllm",
        VERSIONS,
        replaces={
            "vllm/lora/lora_model.py:LoRAModel.from_lora_tensors": "2502dc0e2081ae98",
            "vllm/lora/model_manager.py:LoRAModelManager.add_adapter": "adc228004f495808",
            "vllm/lora/model_manager.py:LoRAModelManager.activate_adapter": "d622dca35b8c3c0c",
            "vllm/model_executor/models/utils.py:WeightsMapper.get_rename_mapper": "88d9f66ee322ded1",
        },
    ),
    Patch(
        "weights loaded in place",
        "vllm",
        VERSIONS,
        replaces={
            "vllm/model_executor/model_loader/utils.py:process_weights_after_loading": "c3ab6f31466b2c16",
            "vllm/model_executor/layers/utils.py:dispatch_cpu_unquantized_gemm": "903afb00f7e7bf3a",
            "vllm/model_executor/layers/fused_moe/oracle/unquantized.py:convert_to_unquantized_kernel_format": "b2791b526183855a",
            "vllm/model_executor/layers/fused_moe/unquantized_fused_moe_method.py:"
            "UnquantizedFusedMoEMethod.process_weights_after_loading": "06b0b3f44784e368",
            "vllm/model_executor/layers/fused_moe/unquantized_fused_moe_method.py:"
            "UnquantizedFusedMoEMethod._setup_kernel": "8722de50f69ce58c",
        },
    ),
    Patch(
        "updates that do not reach the model",
        "vllm",
        VERSIONS,
        replaces={
            "vllm/model_executor/model_loader/reload/layerwise.py:initialize_layerwise_reload": "97cb5d12f08725aa",
            "vllm/model_executor/model_loader/reload/layerwise.py:make_online_process_loader": "71be6c98fad8d428",
            "vllm/model_executor/model_loader/reload/types.py:LayerReloadingInfo": "c049af7043098949",
            "vllm/model_executor/model_loader/reload/meta.py:restore_layer_on_meta": "81d73e6e58a427ad",
        },
    ),
    Patch(
        "data-parallel copies",
        "vllm",
        VERSIONS,
        replaces={
            "vllm/v1/engine/core_client.py:AsyncMPClient.call_utility_all_async": "27e805160171f1f8",
            "vllm/v1/engine/core_client.py:DPLBAsyncMPClient.call_utility_async": "c0b1d1e863c1477d",
            "vllm/v1/engine/core.py:DPEngineCoreProc._pause_complete": "31a2f81161e563a1",
            "vllm/v1/engine/core.py:DPEngineCoreProc.resume_scheduler": "5f318b996d9b76c1",
            "vllm/v1/engine/core.py:DPEngineCoreProc.run_busy_loop": "e0fd577208de8e98",
            "vllm/v1/engine/core.py:EngineCoreProc.run_engine_core": "8186093b1d33c4a1",
        },
    ),
    Patch(
        "health of the engine",
        "vllm",
        VERSIONS,
        replaces={
            "vllm/utils/system_utils.py:set_process_title": "72fd894ae65b202c",
            "vllm/v1/engine/core.py:EngineCoreProc.run_busy_loop": "bc75d710bb264b72",
            "vllm/v1/engine/core.py:EngineCoreProc._process_input_queue": "cfaad55cee4f592d",
            "vllm/v1/engine/core.py:EngineCore.is_scheduler_paused": "3abab70550a34137",
        },
    ),
)
