"""Settings of rollout servers unless `vllmArgs` says otherwise: servers are started with them, and plans use them."""

from typing import Any

from rljob_api.spec import RLJobSpec
from rljob_api.spec.common import Device

SEQUENCES: dict[Device, int] = {"cpu": 256, "gpu": 1024}
"""Responses that one server generates at a time, at most; that one data-parallel copy does, where it has several."""
COLOCATED_SHARE = 0.5
"""Share of a GPU's memory that a colocated server has while it generates."""
SERVER_SHARE = 0.92
"""Share of a GPU's memory that a server in a pod of its own has: vLLM's default."""
CPU_KV_CACHE_BYTES = 256 * 2**20
"""Bytes for keys and values of a server on CPU."""


def server_defaults(spec: RLJobSpec) -> dict[str, Any]:
    """vLLM's arguments that bound a server's memory."""
    found: dict[str, Any] = {"max-num-seqs": SEQUENCES[spec.trainer.device]}
    if spec.trainer.device == "cpu":
        return found | {"kv-cache-memory-bytes": CPU_KV_CACHE_BYTES}
    return found | ({"gpu-memory-utilization": COLOCATED_SHARE} if spec.rollout.placement == "colocated" else {})


def longest_context(spec: RLJobSpec) -> int:
    """Tokens of the longest prompt and response, in training and, if there is any, evaluation: a server's max-model-len."""
    if spec.task == "service":
        return spec.service.max_tokens
    sets = spec.evaluation_sets if spec.evaluation.takes_place else []
    evaluation = [s.sampling.max_tokens for s in sets if s.sampling and not spec.rollout.agent]
    return spec.data.max_prompt_tokens + max(spec.longest_response, *evaluation, 0)


def sequences(spec: RLJobSpec) -> int:
    """Responses that one server generates at a time, in all data-parallel copies."""
    return int((server_defaults(spec) | spec.rollout.vllm_args)["max-num-seqs"]) * spec.rollout.data_parallel
