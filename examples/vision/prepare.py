"""Make what the example job starts from: a small model that sees digits and mostly names the wrong one, and pictures of digits to learn from.

    python prepare.py OUTPUT_DIR [--seed 0] [--set FIELD=VALUE]

    OUTPUT_DIR/model/                 Hugging Face checkpoint in the manner of Qwen2.5-VL, 0.5 M parameters, with tokenizer and image processor
    OUTPUT_DIR/untrained/             the same before its warm-up
    OUTPUT_DIR/data/train.parquet     prompt (a message with <image>), images (one PNG), answer "7", data_source "digit"
    OUTPUT_DIR/data/next.parquet      the same pictures with the next digit as the answer
    OUTPUT_DIR/data/heldout.parquet   other pictures

The warm-up is warm-up.yaml in this directory, an RLJob of task sft that runs on this machine: it learns from a careless teacher's answers, most of
which name the next digit. Reinforcement learning then has to find out which of the two is wanted, from the picture alone.
"""

import argparse
import io
import random
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image, ImageDraw
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLProcessor,
    Qwen2VLImageProcessor,
    Qwen2VLVideoProcessor,
)
from transformers.utils.logging import disable_progress_bar

WARM_UP = Path(__file__).with_name("warm-up.yaml")
SIDE, TRAIN, HELD_OUT = 24, 4000, 500
END, IMAGE = "<|im_end|>", "<|image_pad|>"
SPECIAL = ["<pad>", END, "<|im_start|>", IMAGE, "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"]
WORDS = [*SPECIAL, "user", "assistant", "which", "digit", "?", *"0123456789"]
TEMPLATE = """
{%- for m in messages %}{{- '<|im_start|> ' + m.role + ' ' }}
{%- if m.content is string %}{{- m.content }}{%- else %}{%- for part in m.content %}
{%- if part.type == 'image' %}{{- '<|vision_start|><|image_pad|><|vision_end|>' }}{%- else %}{{- part.text }}{%- endif %}
{%- endfor %}{%- endif %}{{- ' <|im_end|>' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|> assistant ' }}{%- endif %}"""
CUT = {"patch_size": 4, "merge_size": 2, "min_pixels": 64, "max_pixels": 4096}

SEGMENTS = {  # from and to, in units of the digit's width; the middle is 1 below the top
    "top": (0, 0, 1, 0), "middle": (0, 1, 1, 1), "bottom": (0, 2, 1, 2),
    "left above": (0, 0, 0, 1), "right above": (1, 0, 1, 1), "left below": (0, 1, 0, 2), "right below": (1, 1, 1, 2),
}  # fmt: skip
LACKING = {
    "0": ("middle",),
    "1": ("top", "middle", "bottom", "left above", "left below"),
    "2": ("left above", "right below"),
    "3": ("left above", "left below"),
    "4": ("top", "bottom", "left below"),
    "5": ("right above", "left below"),
    "6": ("right above",),
    "7": ("middle", "bottom", "left above", "left below"),
    "8": (),
    "9": ("left below",),
}
"""Segments that a digit does not have."""


class Picture(NamedTuple):
    png: bytes
    digit: str


def draw(order: random.Random) -> Picture:
    """A digit somewhere in a noisy square."""
    digit, width = order.choice("0123456789"), order.randint(6, 8)
    left, top = order.randint(2, SIDE - width - 3), order.randint(2, SIDE - 2 * width - 3)
    picture = Image.frombytes("L", (SIDE, SIDE), bytes(order.randrange(60) for _ in range(SIDE * SIDE)))
    pen = ImageDraw.Draw(picture)
    for name, (x0, y0, x1, y1) in SEGMENTS.items():
        if name not in LACKING[digit]:
            ends = [(left + x0 * width, top + y0 * width), (left + x1 * width, top + y1 * width)]
            pen.line(ends, fill=order.randint(180, 255), width=2)
    stream = io.BytesIO()
    picture.convert("RGB").save(stream, "PNG")
    return Picture(stream.getvalue(), digit)


def next_digit(digit: str) -> str:
    return str((int(digit) + 1) % 10)


def write(pictures: Sequence[Picture], answers: Sequence[str], path: Path) -> None:
    """One row for each picture."""
    question = [{"role": "user", "content": "<image> which digit ?"}]
    rows = {
        "prompt": [question] * len(pictures),
        "images": [[p.png] for p in pictures],
        "answer": list(answers),
        "data_source": ["digit"] * len(pictures),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(rows), path)


def write_data(directory: Path, seed: int) -> None:
    """All data files. No picture is in two of train and held out: each has its own noise."""
    order = random.Random(seed)
    pictures = [draw(order) for _ in range(TRAIN + HELD_OUT)]
    train, held_out = pictures[:TRAIN], pictures[TRAIN:]
    write(train, [p.digit for p in train], directory / "train.parquet")
    write(train, [next_digit(p.digit) for p in train], directory / "next.parquet")
    write(held_out, [p.digit for p in held_out], directory / "heldout.parquet")


def make_processor() -> Qwen2_5_VLProcessor:
    """One token per word; an image is cut into patches of four by four pixels, of which a square of four becomes a token."""
    plain = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<pad>"))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=plain,
        eos_token=END,
        pad_token="<pad>",
        additional_special_tokens=SPECIAL[2:],
        chat_template=TEMPLATE,
        model_max_length=512,
    )
    return Qwen2_5_VLProcessor(
        Qwen2VLImageProcessor(**CUT), tokenizer, Qwen2VLVideoProcessor(**CUT), chat_template=TEMPLATE
    )


def make_config() -> Qwen2_5_VLConfig:
    text: dict[str, Any] = {
        "vocab_size": len(WORDS),
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,  # of size 32, the smallest that vLLM's CPU kernels take
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "initializer_range": 0.06,  # 0.02 suits wide models
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 6, 6]},
        "bos_token_id": None,
        "eos_token_id": WORDS.index(END),
        "pad_token_id": WORDS.index("<pad>"),
    }
    tower: dict[str, Any] = {
        "depth": 2,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_heads": 2,
        "patch_size": CUT["patch_size"],
        "spatial_merge_size": CUT["merge_size"],
        "temporal_patch_size": 2,
        "window_size": 16,
        "fullatt_block_indexes": [1],
        "out_hidden_size": text["hidden_size"],
        "initializer_range": 0.06,
    }
    tokens = {f"{name}_token_id": WORDS.index(f"<|{word}|>") for name, word in (
        ("image", "image_pad"), ("video", "video_pad"), ("vision_start", "vision_start"), ("vision_end", "vision_end"),
    )}  # fmt: skip
    return Qwen2_5_VLConfig(text_config=text, vision_config=tower, tie_word_embeddings=False, **tokens)


def write_start(output: Path, seed: int) -> None:
    """Write all data files, and the model before its warm-up."""
    write_data(output / "data", seed)
    torch.manual_seed(seed)
    model = Qwen2_5_VLForConditionalGeneration(make_config())
    model.generation_config.update(eos_token_id=WORDS.index(END), pad_token_id=0)
    model.save_pretrained(output / "untrained")
    processor = make_processor()
    processor.save_pretrained(output / "untrained")
    processor.tokenizer.save_pretrained(output / "untrained")
    for file in (output / "untrained").iterdir():
        file.chmod(0o644)  # pods run as another user, and weights are saved with mode 0600
    print(f"{output}: {model.num_parameters():,} parameters, {TRAIN} pictures and {HELD_OUT} held out", flush=True)


def warm_up(output: Path, seed: int, settings: Sequence[str]) -> None:
    """Run the RLJob on this machine and put its export into `output`/model. Raises CalledProcessError when it fails; it has said why."""
    shutil.rmtree(output / "warm-up", ignore_errors=True)  # a former run, which it would resume
    values = [f"--set={setting}" for setting in (f"data.seed={seed}", *settings)]
    command = [sys.executable, "-m", "rljob_trainer", "run", str(WARM_UP), f"--mount=/data={output}", *values]
    subprocess.run(command, check=True)
    (export,) = output.glob("warm-up/*/huggingface")
    shutil.rmtree(output / "model", ignore_errors=True)
    export.rename(output / "model")
    shutil.rmtree(output / "warm-up")


def main(arguments: list[str]) -> None:
    """Parse the command line and prepare the directory, on one thread so that a seed always gives the same model."""
    parser = argparse.ArgumentParser(description="Make the starting model and the data of the example with pictures.")
    parser.add_argument("output", type=Path, metavar="OUTPUT_DIR")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--set", action="append", default=[], metavar="FIELD=VALUE", help="of warm-up.yaml, such as trainer.device=gpu"
    )
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    disable_progress_bar()
    write_start(options.output, options.seed)
    try:
        warm_up(options.output, options.seed, options.set)
    except subprocess.CalledProcessError:
        sys.exit("prepare.py: the warm-up failed; its last lines say why")


if __name__ == "__main__":
    main(sys.argv[1:])
