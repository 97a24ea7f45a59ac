"""On CPU a server returns the experts that its tokens went to, for router replay.

vLLM 0.32 collects them in its Model Runner V2 alone, which on CPU needs a build of Triton that the registry does not have, and refuses
`--enable-return-routed-experts` without it. We put vLLM's own collector around each step of Model Runner V1, whose outputs are complete when
`sample_tokens` returns, because on CPU no step is scheduled ahead. Can go when Model Runner V2 runs on CPU without Triton.
"""

from types import SimpleNamespace
from typing import Any

import numpy as np

from rljob_trainer.patches import Patch
from rljob_trainer.server.compat import VERSIONS
from rljob_trainer.server.compat.forked_engine import on_cpu


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

    VllmConfig._verify_aux_output_compatibility = lambda config: None
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
PATCHES = (
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
)
