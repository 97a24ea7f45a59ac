"""Kimi K2 in transformers, which has no class for its `model_type`: DeepSeek-V3's, as its published config.json says."""

import json
from functools import cache
from pathlib import Path
from typing import Any


@cache
def taught(name: str) -> Any:
    """Have transformers make and read such models, and files in which each expert has tensors of its own. The configuration's class, which has that
    name."""
    from transformers import AutoModelForCausalLM
    from transformers.conversion_mapping import (
        get_checkpoint_conversion_mapping,
        register_checkpoint_conversion_mapping,
    )
    from transformers.models.deepseek_v3 import modeling_deepseek_v3

    from rljob_trainer.megatron.compat import kimi_k2

    class DeepseekV3ForCausalLM(modeling_deepseek_v3.DeepseekV3ForCausalLM):
        """Its name is written as the architecture."""

        config_class = kimi_k2.KimiK2Config

    kimi_k2.register()
    AutoModelForCausalLM.register(kimi_k2.KimiK2Config, DeepseekV3ForCausalLM, exist_ok=True)
    register_checkpoint_conversion_mapping("kimi_k2", get_checkpoint_conversion_mapping("deepseek_v3"), overwrite=True)
    return getattr(kimi_k2, name)


OURS = ("head_dim", "qk_head_dim", "rope_interleave")
"""Keys that transformers writes, and published files do not have."""
REMOTE = {
    "AutoConfig": "configuration_deepseek.DeepseekV3Config",
    "AutoModelForCausalLM": "modeling_deepseek.DeepseekV3ForCausalLM",
}
TOKENIZER = """
from transformers import PreTrainedTokenizerFast


class TikTokenTokenizer(PreTrainedTokenizerFast):
    pass
"""


def as_published(directory: Path) -> Path:
    """Give a directory the names of a published one: keys of transformers 4, and remote code, of which only that of the tokenizer can be run."""
    file = directory / "config.json"
    config = json.loads(file.read_text())
    rope = config.pop("rope_parameters")
    scaling = {"type": rope.pop("rope_type")} | {key: rope[key] for key in rope if key != "rope_theta"}
    config |= {"rope_theta": rope["rope_theta"], "rope_scaling": scaling, "auto_map": REMOTE}
    file.write_text(json.dumps({key: value for key, value in config.items() if key not in OURS}))
    for name in ("configuration_deepseek", "modeling_deepseek"):
        (directory / f"{name}.py").write_text("raise ImportError('of an old transformers')")
    (directory / "tokenization_kimi.py").write_text(TOKENIZER)
    of_tokenizer = directory / "tokenizer_config.json"
    named = {
        "tokenizer_class": "TikTokenTokenizer",
        "auto_map": {"AutoTokenizer": [None, "tokenization_kimi.TikTokenTokenizer"]},
    }
    own = json.loads(of_tokenizer.read_text()) if of_tokenizer.exists() else {}
    of_tokenizer.write_text(json.dumps(own | named))
    return directory
