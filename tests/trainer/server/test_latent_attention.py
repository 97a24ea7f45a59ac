"""Latent attention on CPUs: which of vLLM's kernels compute it, where the CPU has more than one."""

from pathlib import Path

import pytest
import torch
from vllm.engine.arg_utils import EngineArgs
from vllm.platforms.cpu import CpuPlatform
from vllm.v1.attention.backends.registry import AttentionBackendEnum

from rljob_trainer.server.compat.cpu_latent_attention import keep_types
from tests.trainer.server.vllm_models import policy

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("dtype", "kernels"), [("float32", AttentionBackendEnum.CPU_MLA), ("bfloat16", AttentionBackendEnum.AMX_MLA)]
)
def test_kernels_for_amx_compute_bfloat16_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, kernels: AttentionBackendEnum
) -> None:
    policy(tmp_path, 1, "deepseek_v3")
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
    monkeypatch.setattr(CpuPlatform, "check_and_update_config", CpuPlatform.check_and_update_config)
    keep_types()
    config = EngineArgs(str(tmp_path), dtype=dtype, skip_tokenizer_init=True).create_engine_config()
    wanted = config.attention_config.backend
    asked = type("Asked", (), {"use_sparse": False, "use_mla": True})
    assert CpuPlatform.get_attn_backend_cls(wanted, asked()) == kernels.get_path()
