"""Random EAGLE-3 drafts on disk."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig


def make_draft(
    path: Path,
    width: int,
    vocabulary: int,
    layers: list[int],
    own: int | None = None,
    seed: int = 3,
    inner: int | None = None,
) -> Path:
    """For a policy of this width and vocabulary, of which it has `own` tokens, or all. `layers`: of the policy, whose inputs it reads. `inner`: width
    of its feed-forward part, `width` unless set."""
    inner = inner or width
    draw = torch.Generator().manual_seed(seed)
    path.mkdir()
    shapes = {
        "fc": (width, len(layers) * width),
        "midlayer.self_attn.q_proj": (128, 2 * width),
        "midlayer.self_attn.k_proj": (64, 2 * width),
        "midlayer.self_attn.v_proj": (64, 2 * width),
        "midlayer.self_attn.o_proj": (width, 128),
        "midlayer.mlp.gate_proj": (inner, width),
        "midlayer.mlp.up_proj": (inner, width),
        "midlayer.mlp.down_proj": (width, inner),
        "lm_head": (own or vocabulary, width),
    }
    norms = [f"midlayer.{name}" for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm")] + ["norm"]
    tensors = {f"{name}.weight": torch.randn(shape, generator=draw) * 0.1 for name, shape in shapes.items()}
    tensors |= {f"{name}.weight": 1 + 0.1 * torch.randn(width, generator=draw) for name in norms}
    if own:
        chosen = torch.randperm(vocabulary, generator=draw)[:own].sort().values
        tensors["d2t"] = chosen - torch.arange(own)
        tensors["t2d"] = torch.zeros(vocabulary, dtype=torch.bool).index_fill(0, chosen, True)
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=width, intermediate_size=inner, num_hidden_layers=1, head_dim=32,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512, tie_word_embeddings=False,
    ).to_dict()  # fmt: skip
    more = {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": own or vocabulary}
    (path / "config.json").write_text(json.dumps(config | more | {"eagle_aux_hidden_state_layer_ids": layers}))
    return path
