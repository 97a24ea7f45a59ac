"""Experts on CPUs: their kernels, how they are chosen, which of them tokens went to, and their spread over the copies of a server.

On CPU a mixture of experts computes with the kernels for CPUs also where other layers have adapters.

As soon as a server takes adapters, vLLM 0.32 gives every layer of experts kernels that could have some, and these are Triton's. Adapters of experts
are not offered (rljob_api/families.py). Can go when vLLM chooses by `lora_config.target_modules`, or has such kernels for CPUs.

On CPU experts are chosen by the sigmoid of their scores also where they are in no groups (MiniMax-M2). vLLM 0.32 has this for groups only, and one
group of all experts is the same. Can go when `CPURouter` takes it.

On CPU a server returns the experts that its tokens went to, for router replay.

vLLM 0.32 collects them in its Model Runner V2 alone, which on CPU needs a build of Triton that the registry does not have, and refuses
`--enable-return-routed-experts` without it. We put vLLM's own collector around each step of Model Runner V1, whose outputs are complete when
`sample_tokens` returns, because on CPU no step is scheduled ahead. Can go when Model Runner V2 runs on CPU without Triton.

On CPU the data-parallel copies of a server exchange tokens, and a worker computes with those experts that it holds.

vLLM 0.32 has neither: its communicator for CPUs lacks two calls, and its kernel takes no `expert_map`, so that it looks for all experts of the model
in the memory of a part of them. Can go when `CpuCommunicator` has the two calls, and `cpu_fused_moe` takes the map.
"""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, distributed

from rljob_api.callbacks import nothing
from rljob_trainer.patches import Patch
from rljob_trainer.server.compat import VERSIONS
from rljob_trainer.server.compat.cpu_engine import on_cpu


def keep_kernels() -> None:
    """Choose the kernels of experts as on servers without adapters."""
    from vllm.model_executor.layers.fused_moe import unquantized_fused_moe_method as method

    select = method.select_unquantized_moe_backend

    def selected(moe_config: Any) -> Any:
        moe_config.is_lora_enabled = False
        return select(moe_config)

    method.select_unquantized_moe_backend = selected


def choose_by_sigmoid() -> None:
    """Have experts without groups be one group."""
    from vllm.model_executor.layers.fused_moe.router.cpu_router import CPURouter

    make = CPURouter.__init__

    def made(router: Any, *given: Any, **named: Any) -> None:
        make(router, *given, **named)
        if router.scoring_func == "sigmoid" and not router.use_grouped_topk:
            router.use_grouped_topk, router.num_expert_group, router.topk_group = True, 1, 1

    CPURouter.__init__ = made


def report_experts() -> None:
    """Make vLLM accept the flag, and its runner collect experts where it is given."""
    from vllm.config import VllmConfig
    from vllm.distributed.aux_output_connector.worker import get_aux_output_connector
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner

    allocate, forward, sample = (
        CPUModelRunner.initialize_kv_cache,
        CPUModelRunner.execute_model,
        CPUModelRunner.sample_tokens,
    )

    def allocated(runner: Any, cache: Any, *more: Any, **named: Any) -> None:
        allocate(runner, cache, *more, **named)
        wanted = runner.vllm_config.aux_output_config.enabled
        runner.collector = get_aux_output_connector(runner.model, runner.vllm_config, cache) if wanted else None

    def forwarded(runner: Any, scheduled: Any, *more: Any, **named: Any) -> Any:
        if runner.collector:
            runner.collector.begin_step(scheduled.aux_output_connector_metadata)
            runner.scheduled = scheduled
        return forward(runner, scheduled, *more, **named)

    def sampled(runner: Any, *grammar: Any) -> Any:
        output = sample(runner, *grammar)
        if runner.collector:
            output.aux_output_connector_output = _collected(runner, output.sampled_token_ids)
        return output

    VllmConfig._verify_aux_output_compatibility = nothing
    CPUModelRunner.initialize_kv_cache = allocated
    CPUModelRunner.execute_model, CPUModelRunner.sample_tokens = forwarded, sampled


def _collected(runner: Any, sampled: list[list[int]]) -> Any:
    """The experts of this step's tokens, by request."""
    batch = runner.input_batch
    lengths = [runner.scheduled.num_scheduled_tokens[request] for request in batch.req_ids]
    step = runner.collector.prepare_output(
        SimpleNamespace(
            req_ids=batch.req_ids,
            query_start_loc_np=np.cumsum([0, *lengths]),
            num_computed_tokens_np=batch.num_computed_tokens_cpu[: len(lengths)],
        )
    )
    rejected = np.zeros(len(lengths), dtype=int)  # of drafts, which no server on CPU makes
    step.enqueue_cpu_copy(np.array([len(tokens) for tokens in sampled]), rejected)
    return step.process_output()


_COLLECTOR = "vllm/distributed/aux_output_connector/worker.py:AuxOutputWorkerConnector"


def spread_experts() -> None:
    """Add what is missing."""
    from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator
    from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts

    compute = CPUUnquantizedExperts.apply

    def apply(experts: Any, **named: Any) -> None:
        own = named["expert_map"]
        if own is not None:
            named["topk_ids"], named["topk_weights"] = held(named["topk_ids"], named["topk_weights"], own)
        compute(experts, **named)

    CPUUnquantizedExperts.apply = apply
    CpuCommunicator.all_gatherv, CpuCommunicator.reduce_scatterv = all_gatherv, reduce_scatterv


def held(ids: Tensor, weights: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
    """The chosen experts as this worker numbers its own, and their weights, which are 0 for those of other workers.

    Args:
        ids: [tokens, experts of a token]
        weights: the same shape
        own: [experts of the model] -> the number here, or -1
    """
    here = own[ids.long()].to(ids.dtype)
    return here.clamp(min=0), weights.masked_fill(here < 0, 0)


def all_gatherv(self: Any, input_: Any, dim: int = 0, sizes: Sequence[int] | None = None) -> Any:
    """Of a tensor, or of each in a list: those of all ranks along the first dimension, of which rank i has sizes[i]."""
    if isinstance(input_, list):
        return [all_gatherv(self, one, dim, sizes) for one in input_]
    assert dim == 0, "copies exchange tokens"
    sizes = sizes or [len(input_)] * self.world_size
    padded = input_.new_zeros((max(sizes), *input_.shape[1:]))
    padded[: len(input_)] = input_
    gathered = [torch.empty_like(padded) for _ in sizes]
    distributed.all_gather(gathered, padded, group=self.device_group)
    return torch.cat([one[:size] for one, size in zip(gathered, sizes, strict=True)])


def reduce_scatterv(self: Any, input_: Tensor, dim: int = 0, sizes: Sequence[int] | None = None) -> Tensor:
    """This rank's part of the sum over all ranks, sizes[rank] along the first dimension."""
    assert dim == 0, "copies exchange tokens"
    sizes = sizes or [len(input_) // self.world_size] * self.world_size
    whole = input_.contiguous().clone()
    distributed.all_reduce(whole, group=self.device_group)  # gloo has no reduce_scatter
    return whole.split(list(sizes))[self.rank_in_group].clone()


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
    Patch(
        "experts that are chosen by a sigmoid on CPU",
        "vllm",
        VERSIONS,
        apply=choose_by_sigmoid,
        needed=on_cpu,
        replaces={
            "vllm/model_executor/layers/fused_moe/router/cpu_router.py:CPURouter": "153d0c29df850aff",
            "vllm/model_executor/layers/fused_moe/router/cpu_router.py:_grouped_topk": "f58dc8b6fb36f934",
        },
    ),
    Patch(
        "experts that are chosen on CPU",
        "vllm",
        VERSIONS,
        apply=report_experts,
        needed=on_cpu,
        replaces={
            "vllm/config/vllm.py:VllmConfig._verify_aux_output_compatibility": "01b69dd64b0dbf78",
            "vllm/v1/worker/cpu_model_runner.py:CPUModelRunner.initialize_kv_cache": "8d6c9f7d11c00459",
            "vllm/v1/worker/gpu_model_runner.py:GPUModelRunner.execute_model": "92806f9019dde069",
            "vllm/v1/worker/gpu_model_runner.py:GPUModelRunner.sample_tokens": "62e7ca0be8c1cd96",
            f"{_COLLECTOR}.begin_step": "9d71247a48bc8a18",
            f"{_COLLECTOR}.prepare_output": "91d8ba48cb464170",
            f"{_COLLECTOR}.process_output": "85853a0983d8123f",
        },
    ),
    Patch(
        "experts that are spread on CPU",
        "vllm",
        VERSIONS,
        apply=spread_experts,
        needed=on_cpu,
        replaces={
            "vllm/model_executor/layers/fused_moe/experts/cpu_moe.py:CPUUnquantizedExperts.apply": "eee74f4dd323eb40",
            "vllm/distributed/device_communicators/base_device_communicator.py:DeviceCommunicatorBase.all_gatherv": "2d0afc5afea99565",
            "vllm/distributed/device_communicators/base_device_communicator.py:DeviceCommunicatorBase.reduce_scatterv": "fbd25585b49e4f00",
            "vllm/distributed/device_communicators/cpu_communicator.py:CpuCommunicator.__init__": "e03f5e49438691c6",
            "vllm/distributed/device_communicators/all2all.py:AgRsAll2AllManager.dispatch": "a775033c5ab2071c",
        },
    ),
)
