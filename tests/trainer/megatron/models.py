"""Tiny Hugging Face models and batches whose log-probabilities come from them."""

import json
import random
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from api.specs import make_spec
from rljob_api.spec import RLJobSpec
from rljob_trainer.wire.batch import Batch
from rljob_trainer.wire.trajectory import Segment, Trajectory, appended, sampled
from trainer.kimi_k2 import taught

SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-6,
}


LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
} | {"original_max_position_embeddings": 8192}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 128}
DEEPSEEK_YARN = YARN | {"mscale": 0.707, "mscale_all_dim": 0.707, "beta_fast": 32, "beta_slow": 1}
PARTIAL = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.75}
EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
    "head_dim": 32,
}
MIXTRAL = {"num_local_experts": 4, "num_experts_per_tok": 2}
MINIMAX = MIXTRAL | {"head_dim": 32, "rotary_dim": 16, "scoring_func": "sigmoid", "use_routing_bias": True}
MINIMAX |= {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}}
"""transformers reads the factor, everybody else `rotary_dim`."""
GEMMA = {"num_hidden_layers": 8, "head_dim": 32, "query_pre_attn_scalar": 24, "sliding_window": 5}
"""Every sixth layer sees everything."""
SHARED = {
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
}
GLM = SHARED | {"head_dim": 32, "partial_rotary_factor": 0.5, "attention_bias": True, "num_nextn_predict_layers": 1}
HYBRID = {
    "head_dim": 32,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
}
"""Three layers with a gated delta net, then one that sees everything."""
HYBRID_EXPERTS = HYBRID | {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 48,
}
LATENT = SHARED | {
    "num_key_value_heads": 4,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 64,
    "v_head_dim": 24,
    "routed_scaling_factor": 2.5,
}
"""The latents and the rotated part are as wide as in all published models: vLLM computes no others on CPUs."""
V2 = LATENT | {"q_lora_rank": None, "topk_method": "greedy", "norm_topk_prob": False, "n_shared_experts": 2}
V3 = LATENT | {"topk_method": "noaux_tc", "scoring_func": "sigmoid"}
KIMI_YARN = YARN | {"rope_theta": 50000.0, "mscale": 1.0, "mscale_all_dim": 1.0, "beta_fast": 1.0, "beta_slow": 1.0}
SPARSE = V3 | {"q_lora_rank": 32, "index_topk": 4, "index_n_heads": 32, "index_head_dim": 96}
"""Fewer tokens are chosen than most samples have. With as many heads as in published models, no two tokens have the same score of 0."""
TOWER = {
    "depth": 2,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_heads": 2,
    "patch_size": 4,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "window_size": 16,
    "out_hidden_size": 64,
    "fullatt_block_indexes": [1],
}
"""A window is two by two tokens."""
QWEN_VL = {
    "vision_config": TOWER,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]},
    "image_token_id": 124,
    "video_token_id": 125,
    "vision_start_token_id": 126,
    "vision_end_token_id": 127,
    "bos_token_id": None,
    "eos_token_id": None,
}
VISION_KEYS = ("vision_config", "image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
QWEN3_VL = QWEN_VL | {
    "vision_config": {k: v for k, v in TOWER.items() if k not in ("window_size", "fullatt_block_indexes")}
    | {"depth": 3, "num_position_embeddings": 16, "deepstack_visual_indexes": [0, 1]},
    "rope_parameters": QWEN_VL["rope_parameters"] | {"mrope_section": [6, 5, 5], "mrope_interleaved": True},
    "head_dim": 32,
}
QWEN3_5 = (
    HYBRID
    | QWEN_VL
    | {
        "vision_config": {k: v for k, v in QWEN3_VL["vision_config"].items() if k != "deepstack_visual_indexes"},
        "rope_parameters": HYBRID["rope_parameters"] | {"mrope_section": [2, 1, 1], "mrope_interleaved": True},
    }
)
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "llama, linear": ("LlamaConfig", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}}),
    "llama, llama3": ("LlamaConfig", {"rope_parameters": LLAMA3}),
    "llama, yarn": ("LlamaConfig", {"rope_parameters": YARN}),
    "mistral": ("MistralConfig", {"head_dim": 32, "sliding_window": None}),
    "mistral, window": ("MistralConfig", {"head_dim": 32, "sliding_window": 5}),
    "phi3": ("Phi3Config", {"pad_token_id": 0, "sliding_window": None}),
    "phi3, window": ("Phi3Config", {"pad_token_id": 0, "sliding_window": 5, "rope_parameters": PARTIAL}),
    "qwen2": ("Qwen2Config", {}),
    "qwen2, yarn": ("Qwen2Config", {"rope_parameters": YARN}),
    "qwen2_5_vl": ("Qwen2_5_VLConfig", QWEN_VL),
    "qwen3_vl": ("Qwen3VLConfig", QWEN3_VL),
    "qwen3_vl_moe": ("Qwen3VLMoeConfig", QWEN3_VL | EXPERTS | {"moe_intermediate_size": 48}),
    "qwen3": ("Qwen3Config", {"head_dim": 32}),
    "qwen3, yarn": ("Qwen3Config", {"head_dim": 32, "rope_parameters": YARN}),
    "qwen3_moe": ("Qwen3MoeConfig", EXPERTS),
    "qwen3_moe, yarn": ("Qwen3MoeConfig", EXPERTS | {"rope_parameters": YARN}),
    "qwen3_next": ("Qwen3NextConfig", HYBRID_EXPERTS),
    "qwen3_5": ("Qwen3_5Config", QWEN3_5),
    "qwen3_5_moe": ("Qwen3_5MoeConfig", HYBRID_EXPERTS | QWEN3_5),
    "qwen3_5_text": ("Qwen3_5TextConfig", HYBRID),
    "qwen3_5_moe_text": ("Qwen3_5MoeTextConfig", HYBRID_EXPERTS),
    "gemma3_text": ("Gemma3TextConfig", GEMMA),
    "mixtral": ("MixtralConfig", MIXTRAL),
    "mixtral, window": ("MixtralConfig", MIXTRAL | {"sliding_window": 5}),
    "glm4": ("Glm4Config", {"head_dim": 32, "pad_token_id": 0, "eos_token_id": 0}),
    "glm4_moe": ("Glm4MoeConfig", GLM),
    "glm4_moe, norms": ("Glm4MoeConfig", GLM | {"use_qk_norm": True}),
    "minimax_m2": ("MiniMaxM2Config", MINIMAX),
    "gpt_oss": ("GptOssConfig", MIXTRAL | {"head_dim": 32, "sliding_window": 5}),
    "deepseek_v2": ("DeepseekV2Config", V2),
    "deepseek_v2, yarn": ("DeepseekV2Config", V2 | {"rope_parameters": DEEPSEEK_YARN}),
    "deepseek_v3": ("DeepseekV3Config", V3 | {"q_lora_rank": 32, "n_group": 2, "num_nextn_predict_layers": 1}),
    "deepseek_v3, yarn": ("DeepseekV3Config", V3 | {"q_lora_rank": None, "rope_parameters": DEEPSEEK_YARN}),
    "kimi_k2": ("KimiK2Config", V3 | {"q_lora_rank": 32, "num_nextn_predict_layers": 0, "rope_parameters": KIMI_YARN}),
    "deepseek_v32": ("DeepseekV32Config", SPARSE | {"n_group": 2}),
    "deepseek_v32, yarn": ("DeepseekV32Config", SPARSE | {"rope_parameters": KIMI_YARN}),
    "glm_moe_dsa": ("GlmMoeDsaConfig", SPARSE | {"indexer_rope_interleave": True}),
    "glm_moe_dsa, shared": (
        "GlmMoeDsaConfig",
        SPARSE | {"indexer_rope_interleave": True, "index_topk_freq": 2, "index_skip_topk_offset": 1},
    ),
}
"""Every family of rljob_api.families, by its model_type, and its variants: the class of its configuration, and what differs from SHAPE."""
TIED = ("qwen2", "qwen3", "qwen3_vl", "gemma3_text")
"""Those whose output layer is the embedding, in the tests of all families."""


def family_of(kind: str) -> str:
    return kind.partition(",")[0]


def make_config(kind: str, vocabulary: int = 160, tied: bool = False, **sizes: int) -> Any:
    """transformers' configuration of a tiny model. `sizes`: in place of those in SHAPE."""
    name, more = KINDS[kind]
    text, whole = SHAPE | sizes | more | {"vocab_size": vocabulary}, {"tie_word_embeddings": tied}
    if "vision_config" in more:
        whole |= {key: text.pop(key) for key in VISION_KEYS}
        return config_class(name)(text_config=text, **whole)
    return config_class(name)(**text, **whole)


def config_class(name: str) -> Any:
    """Of transformers, or Kimi K2's, which transformers does not have."""
    import transformers

    return getattr(transformers, name, None) or taught(name)


def make_model(
    directory: Path, kind: str = "qwen2", tied: bool = True, vocabulary: int = 160, seed: int = 0, **save: Any
) -> Path:
    """A random model with norms and biases away from their neutral values. `save`: for save_pretrained."""
    model = random_model(make_config(kind, vocabulary, tied), seed)
    model.save_pretrained(directory, **save)
    if kind == "qwen3_vl_moe":
        turn_experts(directory)
    (directory / "tokenizer.json").write_text(json.dumps({"stands": "for a tokenizer"}))
    return directory


def add_multi_token_layer(directory: Path, seed: int = 7, copies: bool = False) -> Path:
    """Put a random layer for multi-token prediction, which transformers does not have, into the one file of a model: another last layer, and what
    reads embedding and hidden states before it. `copies`: also of embedding and output layer, as published models have them."""
    file, config = directory / "model.safetensors", json.loads((directory / "config.json").read_text())
    tensors, layers, width = load_file(file), config["num_hidden_layers"], config["hidden_size"]
    draw = torch.Generator().manual_seed(seed)
    random_of = lambda *shape: torch.randn(*shape, generator=draw)  # noqa: E731
    last, further = f"model.layers.{layers - 1}.", f"model.layers.{layers}."
    found = {
        name.replace(last, further): tensor + 0.1 * random_of(*tensor.shape)
        if tensor.dim() < 2
        else 0.1 * random_of(*tensor.shape)
        for name, tensor in tensors.items()
        if name.startswith(last)
    }
    found |= {f"{further}{norm}.weight": 1 + 0.1 * random_of(width) for norm in ("enorm", "hnorm", "shared_head.norm")}
    found[f"{further}eh_proj.weight"] = 0.1 * random_of(width, 2 * width)
    if copies:
        found[f"{further}embed_tokens.weight"] = tensors["model.embed_tokens.weight"].clone()
        found[f"{further}shared_head.head.weight"] = tensors["lm_head.weight"].clone()
    save_file(tensors | found, file, metadata={"format": "pt"})
    return directory


def random_model(config: Any, seed: int) -> Any:
    torch.manual_seed(seed)
    model = kind_of_model(config).from_config(config)
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if "norm" in name or name.endswith("bias"):
            tensor.data.add_(torch.randn_like(tensor) * 0.1)
    return model


def turn_experts(directory: Path) -> None:
    """Qwen3-VL was published with experts [experts, in, out]. transformers reads them so, and writes the other way round."""
    for file in directory.glob("*.safetensors"):
        tensors = load_file(file)
        for name in (n for n in tensors if n.endswith((".experts.gate_up_proj", ".experts.down_proj"))):
            tensors[name] = tensors[name].transpose(1, 2).contiguous()
        save_file(tensors, file, metadata={"format": "pt"})


def kind_of_model(config: Any) -> Any:
    """transformers' class for models of one kind."""
    import transformers

    return transformers.AutoModelForImageTextToText if "vision_config" in config else transformers.AutoModelForCausalLM


def load_model(model: Path) -> Any:
    """In transformers, in float32."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(model)
    return kind_of_model(config).from_pretrained(model, dtype=torch.float32).eval()


def make_batch(model: Path, step: int = 1, groups: int = 4, samples: int = 4, temperature: float = 1.0) -> Batch:
    """Random tokens in prompts of 2-8 and responses of 1-8, with the log-probabilities that the model in `model` gives them."""
    policy = load_model(model)
    draw = random.Random(step)
    tokens = lambda n: tuple(draw.randrange(policy.config.get_text_config().vocab_size) for _ in range(n))  # noqa: E731
    prompts = [tokens(draw.randrange(2, 9)) for _ in range(groups)]
    found = []
    for group, sample in ((g, s) for g in range(groups) for s in range(samples)):
        response = tokens(draw.randrange(1, 9))
        log_probs = response_log_probs(policy, prompts[group], response, temperature)
        found.append(
            Trajectory.of_response(
                prompts[group],
                response,
                log_probs,
                policy_step=step - 1,
                prompt_index=group,
                group=group,
                sample=sample,
                finish_reason="stop",
                reward=float(draw.random() < 0.5),
                data_source="test",
            )
        )
    return Batch.of(step, found, {})


def changed_samples(batch: Batch, change: Callable[[Trajectory], Trajectory]) -> Batch:
    """With what `change` makes of each sample."""
    return Batch.of(batch.step, [change(s) for s in batch.samples], batch.metrics)


def written_by(sample: Trajectory, *policy_steps: int) -> Trajectory:
    """Its response in as many parts as there are policies, of about equal length."""
    n, count = sample.response_length, len(policy_steps)
    cuts = [n * i // count for i in range(count + 1)]
    response: tuple[Segment, ...] = ()
    for (start, end), step in zip(pairwise(cuts), policy_steps, strict=True):
        tokens, log_probs = sample.response_tokens[start:end], sample.response_log_probs[start:end]
        response = appended(response, sampled(tokens, log_probs, step))
    return replace(sample, segments=(sample.segments[0], *response))


def shifted(sample: Trajectory, by: float, policy_step: int | None = None) -> Trajectory:
    """With log-probabilities moved by so much: all, or those of what one policy wrote."""
    chosen = lambda s: s.source == "policy" and policy_step in (None, s.policy_step)  # noqa: E731
    moved = lambda s: replace(s, log_probs=s.log_probs + np.float32(by)) if chosen(s) else s  # noqa: E731
    return replace(sample, segments=tuple(moved(s) for s in sample.segments))


@torch.no_grad()
def response_log_probs(
    model: Any, prompt: tuple[int, ...], response: tuple[int, ...], temperature: float
) -> tuple[float, ...]:
    logits = model(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1] / temperature
    return tuple(logits.log_softmax(-1).gather(1, torch.tensor(response)[:, None])[:, 0].tolist())


def job(
    model: Path,
    tensor: int = 1,
    pipeline: int = 1,
    data: int = 1,
    dtype: str = "float32",
    trainer: dict[str, Any] | None = None,
    **train: Any,
) -> RLJobSpec:
    """A spec for the layout, or with the section `trainer`, with a KL penalty and an entropy bonus so that every term of the loss is there, and
    `train` merged into spec.train."""
    temperature = train.pop("temperature", 1.0)
    algorithm = train.pop("algorithm", {"kl": {"coefficient": 0.1}, "entropyCoefficient": 0.01})
    layout = {"nodes": tensor * pipeline * data, "parallelism": {"tensor": tensor, "pipeline": pipeline}}
    return make_spec(
        model={"path": str(model), "dtype": dtype},
        algorithm=algorithm,
        train={"tokensPerMicroBatch": 64, "optimizer": {"learningRate": 1e-3}} | train,
        trainer={"device": "cpu"} | (trainer or layout),
        rollout={"sampling": {"maxTokens": 8, "temperature": temperature}},
    )


def ranks_of(spec: RLJobSpec) -> int:
    return spec.trainer.nodes * spec.trainer.processes_per_node


def train_step(engine: Any, batch: Batch) -> dict[str, float]:
    """One step of the job, as the loop takes it: a rank has its own part of the trajectories only. Its metrics."""
    step = engine.measure(batch.part(engine.parts(batch.columns)[engine.data_rank]))
    return engine.update(step, engine.objective.advantages(step))
