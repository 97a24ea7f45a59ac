"""Command lines and environments of rollout servers, and of servers of pools, from the spec. Pure."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rljob_api.family import ADAPTED
from rljob_api.rules.lora import MODULES_OF_FUSED, modules_of
from rljob_api.sizing.replica import longest_context, server_defaults
from rljob_api.spec import RLJobSpec
from rljob_api.spec.model import LORA_RANKS
from rljob_api.spec.processes import Servers
from rljob_api.spec.roles import PoolSpec, Speculation
from rljob_api.spec.service import ServiceSpec
from rljob_trainer.machine import any_address, loopback
from rljob_trainer.pod.part import PodPart
from rljob_trainer.wire.rollout_server import BATCH_INVARIANT, EXACT_ON_CPU
from rljob_trainer.wire.weights.drafts import LEARNS
from rljob_trainer.wire.weights.protocol import SERVED_MODEL, backend

CPU_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # vLLM would bind every server of a node to the same first cores
}
CPU_ONE_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
"""Otherwise vLLM on CPU ignores the executor `uni`, and spawns a worker that imports everything again and takes 1.2 GB."""
WHOLE_PROMPTS = {"enable-chunked-prefill": False}
"""On CPU. With chunked prefill vLLM 0.32 discards the token that it sampled after an incomplete prompt, and then fails for requests with a seed: "CPU
Generator does not use offset" (v1/worker/gpu_model_runner.py, _bookkeeping_sync)."""
EXACT_ON_GPU: dict[str, Any] = {
    "compilation-config": {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"},
    "enable-prefix-caching": False,
}
EXACT_ENVIRONMENT = {BATCH_INVARIANT: "1", "VLLM_USE_BREAKABLE_CUDAGRAPH": "0"}
"""Of servers on GPUs with `rollout.exact`: what `benchmarks.exact` measured. vLLM turns breakable CUDA graphs on for some shapes of this mode."""
LOOKED_UP = {"prompt_lookup_min": 2, "prompt_lookup_max": 4}
"""Number of last tokens that `ngram` looks for."""
WITHOUT_MULTICAST = {"compilation-config": {"pass_config": {"fuse_allreduce_rms": False}}}
WITHOUT_MULTICAST_ENVIRONMENT = {
    "VLLM_FLASHINFER_ALLREDUCE_BACKEND": "trtllm",
    "VLLM_ALLREDUCE_USE_SYMM_MEM": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",  # vLLM's CustomAllreduce asks torch for a multicast buffer whatever the other two say
}
"""For servers on several GPUs. vLLM fuses the all-reduce with the following norm in a kernel that needs NVLink multicast. vLLM 0.26 failed where a
pod has none; by its source 0.32 falls back; not tried."""
_IMAGES: dict[str, Any] = {"limit-mm-per-prompt": {"video": 0}, "mm-processor-cache-gb": 0}
"""Images arrive preprocessed, and each one only once, so the processor's cache is useless."""
RAW = {"logprobs-mode": "raw_logprobs"}
"""Of a service: the ranks measure without temperature, too."""
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}


def server_arguments(spec: RLJobSpec, port: int, part: PodPart | None = None) -> list[str]:
    """Arguments of vLLM's API server: defaults, which spec.rollout.vllmArgs overrides, and what the trainer depends on, which overrides both. `part`:
    the one that a pod runs, of a server of several."""
    rollout = spec.rollout
    own: dict[str, Any] = {
        "model": spec.model.path,
        "served-model-name": SERVED_MODEL,
        "host": any_address(),
        "port": port,
        "dtype": spec.model.dtype,
        "max-model-len": longest_context(spec),
        **_cut(rollout, part),
        "generation-config": "vllm",
        "logprobs-mode": "processed_logprobs",
        "middleware": "rljob_trainer.server.front.Front",
        "worker-extension-cls": "rljob_trainer.server.weights.engine.WorkerExtension",
        "scheduler-cls": "rljob_trainer.server.compat.scheduler.scheduler",
        "weight-transfer-config": {"backend": backend(spec.trainer.device, spec.rollout.placement)},
        "trust-remote-code": spec.model.trust_remote_code,
    }
    if spec.algorithm.rollout_correction.router_replay == "rollout":
        own |= {"enable-return-routed-experts": True}
    if spec.data.image_key:
        own |= {
            "mm-device-do-normalize": False
        }  # vLLM's tower would normalise once more what the driver has normalised
    lora = spec.model.lora
    if lora and lora.sync == "adapters":
        own |= {"enable-lora": True, "max-loras": 1, "max-lora-rank": next(n for n in LORA_RANKS if n >= lora.rank)}
        own |= {"lora-target-modules": _adapted(lora.targets or ADAPTED)}
    if rollout.speculation:
        own |= _guesses(rollout.speculation)
    if spec.task == "service":
        own |= RAW | (_of_adapters(spec.service) if spec.adapters else {})
    default = {"disable-uvicorn-access-log": True} | server_defaults(spec) | (_IMAGES if spec.data.image_key else {})
    if spec.trainer.device == "cpu":
        default |= {"enforce-eager": True} | WHOLE_PROMPTS
    elif rollout.placement == "colocated":
        own |= {"enable-sleep-mode": True}
    if _on_several_gpus(spec, rollout.gpus):
        default |= WITHOUT_MULTICAST
    if rollout.exact and spec.trainer.device == "gpu":
        default |= EXACT_ON_GPU
    return list(_command_line(default | rollout.vllm_args | own))


def _guesses(speculation: Speculation) -> dict[str, Any]:
    """The best guess is taken, which needs no probabilities of the draft's own. Each response says how many guesses were right."""
    given: dict[str, Any] = {"method": speculation.method, "num_speculative_tokens": speculation.tokens}
    given |= LOOKED_UP if speculation.method == "ngram" else {}
    given |= {"model": speculation.draft} if speculation.draft else {}
    return {
        "speculative-config": given | {"draft_sample_method": "greedy"},
        "per-request-spec-decode-metrics": "summary",
    }


def _of_adapters(service: ServiceSpec) -> dict[str, Any]:
    """Of servers that serve snapshots of clients' adapters next to the base model."""
    return {
        "middleware": "rljob_trainer.server.sample.ServiceFront",
        "enable-lora": True,
        "max-loras": min(service.max_models, service.max_snapshots),
        "max-cpu-loras": service.max_snapshots,
        "max-lora-rank": next(n for n in LORA_RANKS if n >= service.max_rank),
        "lora-target-modules": _adapted(ADAPTED),
    }


def _cut(servers: Servers, part: PodPart | None) -> dict[str, Any]:
    """How the model of a server is cut over its GPUs, and over its pods. Each data-parallel copy has an engine, and all have one API server."""
    cut: dict[str, Any] = {"tensor-parallel-size": servers.tensor_parallel}
    cut |= {"distributed-executor-backend": "uni" if servers.gpus_of_a_copy == 1 else "mp"}
    cut |= {"pipeline-parallel-size": servers.pipeline_parallel} if servers.pipeline_parallel > 1 else {}
    cut |= {"data-parallel-size": servers.data_parallel} if servers.data_parallel > 1 else {}
    cut |= {"enable-expert-parallel": True} if servers.expert_parallel else {}
    return cut | (part.arguments(servers) if part else {})


def _adapted(targets: Sequence[str]) -> list[str]:
    """The modules of the targets, by their names in model files with and without fused matrices."""
    return [*modules_of(targets), *(module for target in targets for module in MODULES_OF_FUSED.get(target, ()))]


def pool_arguments(spec: RLJobSpec, pool: PoolSpec, port: int, part: PodPart | None = None) -> list[str]:
    """Like server_arguments, for a server of a pool. On GPUs vLLM's own defaults for memory apply, since it does not share them."""
    own: dict[str, Any] = {
        "model": pool.model,
        "served-model-name": pool.name,
        "host": any_address(),
        "port": port,
        **_cut(pool, part),
        "middleware": "rljob_trainer.server.guard.PoolFront",
    }
    default: dict[str, Any] = {"disable-uvicorn-access-log": True}
    if spec.trainer.device == "cpu":
        default |= {"enforce-eager": True} | server_defaults(spec)
    if _on_several_gpus(spec, pool.gpus):
        default |= WITHOUT_MULTICAST
    return list(_command_line(default | pool.vllm_args | own))


def server_environment(
    spec: RLJobSpec, gpus: int, inherited: Mapping[str, str], part: PodPart | None = None
) -> dict[str, str]:
    """The inherited environment, with our defaults for what it does not set. `gpus`: of one server.

    Engine and workers of a server in one pod connect over its loopback, those of several pods over their addresses. By default vLLM looks for the
    address of the route to the internet, and takes 0.0.0.0 when there is none.
    """
    rollout, device = spec.rollout, dict[str, str]()
    if spec.trainer.device == "cpu":
        device = CPU_ENVIRONMENT | (CPU_ONE_PROCESS if gpus == 1 else {})
        device |= {EXACT_ON_CPU: "1"} if rollout.exact else {}
    else:
        device = WITHOUT_MULTICAST_ENVIRONMENT if gpus > 1 else {}
        device |= EXACT_ENVIRONMENT if rollout.exact else {}
    network = part.environment if part else {"VLLM_HOST_IP": loopback()}
    learns = {LEARNS: "1"} if rollout.speculation and rollout.speculation.learns else {}
    return ENVIRONMENT | network | device | learns | dict(inherited)


def _on_several_gpus(spec: RLJobSpec, gpus: int) -> bool:
    return spec.trainer.device == "gpu" and gpus > 1


def _command_line(arguments: Mapping[str, Any]) -> Iterator[str]:
    """`--key value`; booleans as `--key` and `--no-key`, null omitted, lists as several values, objects as JSON."""
    for key, value in arguments.items():
        if isinstance(value, bool):
            yield f"--{key}" if value else f"--no-{key}"
        elif isinstance(value, list):
            yield from (f"--{key}", *map(str, value))
        elif value is not None:
            yield from (f"--{key}", json.dumps(value) if isinstance(value, dict) else str(value))
