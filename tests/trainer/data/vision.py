"""A tokenizer, an image processor and a chat template in the manner of Qwen2.5-VL and Qwen3-VL: 128 tokens, patches of four by four pixels."""

import base64
import io
from pathlib import Path

from PIL import Image

WORDS = 128
PAD, FIRST, LAST, VIDEO = 124, 126, 127, 125
"""As in tests/trainer/megatron/kinds.py."""
TEMPLATE = """
{%- for m in messages %}{{- '<|im_start|> ' + m.role + ' ' }}
{%- if m.content is string %}{{- m.content }}{%- else %}{%- for part in m.content %}
{%- if part.type == 'image' %}{{- '<|vision_start|><|image_pad|><|vision_end|>' }}{%- else %}{{- part.text }}{%- endif %}
{%- endfor %}{%- endif %}{{- ' <|im_end|> ' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|> assistant ' }}{%- endif %}"""
PROCESSORS = {
    "qwen2_5_vl": ("Qwen2_5_VLProcessor", "Qwen2VLVideoProcessor"),
    **dict.fromkeys(
        ("qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"), ("Qwen3VLProcessor", "Qwen3VLVideoProcessor")
    ),
}
SPECIAL = {"<|image_pad|>": PAD, "<|video_pad|>": VIDEO, "<|vision_start|>": FIRST, "<|vision_end|>": LAST}


def png(width: int, height: int, colour: str = "red") -> bytes:
    """An image of one colour."""
    stream = io.BytesIO()
    Image.new("RGB", (width, height), colour).save(stream, "PNG")
    return stream.getvalue()


def png_url(width: int, height: int, colour: str = "red") -> str:
    """The address of such an image, which holds it."""
    return "data:image/png;base64," + base64.b64encode(png(width, height, colour)).decode()


def save_processor(path: Path, kind: str = "qwen2_5_vl", **cut: int) -> Path:
    """What transformers' and vLLM's processors are loaded from. `cut`: how images are, otherwise than above."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2VLImageProcessor

    given = {"<pad>": 0, "<|im_end|>": 1, "<|im_start|>": 2, "user": 3, "assistant": 4, "system": 5}
    words = given | {f"w{i}": i for i in range(6, PAD)} | SPECIAL
    plain = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=plain,
        eos_token="<|im_end|>",
        pad_token="<pad>",
        additional_special_tokens=["<|im_start|>", *SPECIAL],
        chat_template=TEMPLATE,
    )
    cut = {"patch_size": 4, "merge_size": 2, "min_pixels": 64, "max_pixels": 4096} | cut
    processor, video = (getattr(transformers, name) for name in PROCESSORS[kind])
    processor(Qwen2VLImageProcessor(**cut), tokenizer, video(**cut), chat_template=TEMPLATE).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def processor_directory(path: Path) -> Path:
    """With a config.json that says which family it is."""
    from trainer.megatron.kinds import make_config

    make_config("qwen2_5_vl", WORDS).save_pretrained(path)
    return save_processor(path)
