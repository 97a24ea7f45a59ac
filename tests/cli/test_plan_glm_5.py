"""plan of fine-tuning with the published config.json of GLM-5, and with that of GLM-5.2, of whose layers 21 of 78 have an indexer."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from kubectl_rljob.__main__ import main

PUBLISHED: dict[str, Any] = {
    "architectures": ["GlmMoeDsaForCausalLM"],
    "attention_bias": False,
    "dtype": "bfloat16",
    "first_k_dense_replace": 3,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 6144,
    "index_head_dim": 128,
    "index_n_heads": 32,
    "index_topk": 2048,
    "indexer_rope_interleave": True,
    "intermediate_size": 12288,
    "kv_lora_rank": 512,
    "max_position_embeddings": 202752,
    "model_type": "glm_moe_dsa",
    "moe_intermediate_size": 2048,
    "moe_layer_freq": 1,
    "n_group": 1,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 64,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 78,
    "num_key_value_heads": 64,
    "num_nextn_predict_layers": 1,
    "q_lora_rank": 2048,
    "qk_head_dim": 256,
    "qk_nope_head_dim": 192,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-05,
    "rope_parameters": {"rope_theta": 1000000, "rope_type": "default"},
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "tie_word_embeddings": False,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "v_head_dim": 256,
    "vocab_size": 154880,
}
FEWER_INDEXERS = {"index_topk_freq": 4, "index_skip_topk_offset": 3, "max_position_embeddings": 1048576}
LAYOUT = {"tensor": 8, "pipeline": 2, "expert": 64, "expertTensor": 1}


def planned(directory: Path, config: dict[str, Any], **trainer: Any) -> int:
    """The exit status of plan for a job on 256 H200s."""
    spec = {
        "task": "sft",
        "image": "registry.invalid/trainer",
        "model": {"path": "/models/glm-5"},
        "data": {"train": ["/data/train.parquet"]},
        "train": {"steps": 100, "tokensPerMicroBatch": 16384},
        "checkpoint": {"path": "/checkpoints/glm-5"},
        "trainer": {
            "nodes": 32,
            "processesPerNode": 8,
            "parallelism": LAYOUT,
            "recompute": {"granularity": "full"},
            **trainer,
        },
    }
    job = {"apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": "glm-5"}, "spec": spec}
    (directory / "job.yaml").write_text(yaml.safe_dump(job))
    (directory / "config.json").write_text(json.dumps(config))
    return main(["plan", "-f", str(directory / "job.yaml"), "--model", str(directory), "--offline", "--gpu", "h200"])


def test_glm_5_fits_into_256_h200s(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert planned(tmp_path, PUBLISHED) == 0
    page = capsys.readouterr().out
    assert "\nFits, by the estimate\n" in page
    assert "1 export of 1,487.8 GB" in page, "744 billion parameters of two bytes"


def test_stages_of_glm_5_2_are_cut_where_plan_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert planned(tmp_path, PUBLISHED | FEWER_INDEXERS) == 1
    said = "".join(capsys.readouterr())
    assert (
        "a piece of a stage would begin with layer 39, which takes the tokens that the one before it attends to" in said
    )
    assert "pieces begin with any of the layers 0, 1, 2, 6, 10, 14, 18, 22, 26, 30, 34, 38, 42," in said
    cut = {"pipeline_model_parallel_layout": "Et*38|t*40L"}
    assert planned(tmp_path, PUBLISHED | FEWER_INDEXERS, transformerConfig=cut) == 0
    assert "stages of 38, 40 layers" in capsys.readouterr().out
