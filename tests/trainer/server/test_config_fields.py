"""Nearly all fields of a family's configuration in other values at once, on a real server: it says what transformers says. A field that trainer and
transformers follow, and vLLM computes otherwise, would draw rollouts from another model."""

from collections.abc import Callable
from pathlib import Path

import pytest

from extra import extra_but
from rljob_api.families import FAMILIES
from trainer.megatron.config_drawn import Drawn
from trainer.megatron.config_fields import Setting
from trainer.megatron.config_parity import saved
from trainer.megatron.config_rows import rows
from trainer.megatron.kinds import KINDS, family_of, make_config
from trainer.server import models
from trainer.server.servers import Server, spec
from trainer.server.test_families import difference, publish_and_generate

APART = (
    *("hidden_size", "intermediate_size", "moe_intermediate_size", "head_dim", "vocab_size", "num_attention_heads"),
    *("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "rotary_dim"),
)
"""vLLM's kernels for CPUs want some sizes, and with another one than that of a tensor no server starts."""
SERVERS_OWN = [
    Setting(("head_dtype",), "bfloat16"),
    Setting(("is_mm_prefix_lm",), True),
    Setting(("max_model_len",), 1024),
    Setting(("moe_router_dtype",), "float32"),
    Setting(("rswa_window",), 4),
    Setting(("target_layer_count",), 1),
    Setting(("rope_parameters", "rope_dim"), 8),
    Setting(("rope_parameters", "use_fope"), True),
]
"""Fields that vLLM alone reads."""
SERVED = [name for name, family in FAMILIES.items() if "cpu" in family.servers and not family.vision]


@pytest.mark.slow
@pytest.mark.parametrize("kind", extra_but(("mixtral, window",), [kind for kind in KINDS if family_of(kind) in SERVED]))
def test_fields_are_followed_together_or_refused(start: Callable[..., Server], tmp_path: Path, kind: str) -> None:
    usual = make_config(kind, models.VOCABULARY, kind == "gemma3_text", hidden_size=128, max_position_embeddings=512)
    drawn = Drawn(usual, spec(tmp_path), APART, SERVERS_OWN)
    (row,) = rows(drawn.settings, drawn.possible, seed=7, most=1)
    subject = drawn.subject(row)
    assert subject and len(row) > 10
    model = saved(subject.model, tmp_path / "model", drawn.config(row))
    models.save_tokenizer(model)
    server = start(model)
    answers = publish_and_generate(server, model)
    server.kill()
    assert difference(model, answers) < 1e-4, "; ".join(map(str, row))
