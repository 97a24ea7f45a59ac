"""Models that read images on a GPU, with real vLLM: GRPO steps of the product's own command, colocated, with random weights and drawn pictures.

    python -m benchmarks.vision [--kinds qwen2_5_vl qwen3_vl qwen3_5 ...] [--steps 3] [--device gpu] [--out FILE]

The vision tower is frozen (`--train-vision`: trained). Kinds may be those whose generation is not proven yet. Prints for each the split of the
steps and the difference between the log-probabilities of trainer and vLLM, mean and largest. `seen` is how much those of random tokens differ, by
transformers, when a prompt has another picture: what a server that got the wrong picture would differ by.
"""

import argparse
import io
import random
import sys
from pathlib import Path
from typing import Any

import torch

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from benchmarks import jobs, scratch, step, unproven
from benchmarks.vision_kinds import KINDS, Kind
from trainer.data.vision import PROCESSORS, TEMPLATE
from trainer.megatron.kinds import KINDS as FAMILY_KINDS
from trainer.megatron.kinds import config_class
from trainer.megatron.models import save_published

LIMIT_SECONDS = 400
SPECIAL = ["<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"]
WORDS = ["<pad>", "<|im_end|>", "<|im_start|>", *SPECIAL, "user", "assistant", "what", "is", "this", "?"]
TOKENS = 64
"""Random ones behind a picture, for which log-probabilities are compared."""
QUESTION = [{"role": "user", "content": "<image> what is this ?"}]


def main() -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.vision")
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--train-vision", action="store_true")
    parser.add_argument("--device", choices=["gpu", "cpu"], default="gpu")
    parser.add_argument("--out", type=Path, default=Path("vision.jsonl"))
    parser.add_argument("--work", type=Path, help=scratch.HELP)
    options = parser.parse_args()
    with scratch.directory(options.work, "vision") as options.work:
        rows = jobs.record(options.out, (measure(kind, options) for kind in options.kinds))
    return int(any(row["exit"] for row in rows))


def measure(name: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each step."""
    kind, root = KINDS[name], options.work / name
    seen = write_model(root / "model", kind)
    write_data(root, kind)
    (root / "reward.py").write_text(step.REWARD)
    given = job(root, kind, options)
    ended = jobs.run(root, "bench-vision", given, options.steps, LIMIT_SECONDS, unproven.PRODUCT)
    return jobs.rows_of_steps({"kind": name, "seen": seen}, ended, options.steps, ("response_length/mean",))


def write_model(directory: Path, kind: Kind) -> float:
    """Random weights in bfloat16, with outputs and images that make a difference; returns how much of one."""
    import transformers

    ids = {name: WORDS.index(f"<|{word}|>") for name, word in (
        ("image_token_id", "image_pad"), ("video_token_id", "video_pad"),
        ("vision_start_token_id", "vision_start"), ("vision_end_token_id", "vision_end"),
    )}  # fmt: skip
    end = {"bos_token_id": None, "eos_token_id": WORDS.index("<|im_end|>"), "pad_token_id": 0}
    tower = kind.tower | {"out_hidden_size": kind.text["hidden_size"]}
    config = config_class(FAMILY_KINDS[kind.family][0])(
        text_config=kind.text | end, vision_config=tower, tie_word_embeddings=False, **ids
    )
    torch.manual_seed(0)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = transformers.AutoModelForImageTextToText.from_config(config, dtype=torch.bfloat16).eval()
    with torch.no_grad():
        model.lm_head.weight.normal_(0, 1.5 / kind.text["hidden_size"] ** 0.5)
        for parameter in model.model.visual.parameters():
            parameter.mul_(2.0)
    save_published(model, directory)
    return difference_of_pictures(model, write_processor(directory, kind), kind)


def write_processor(directory: Path, kind: Kind) -> Any:
    """One token per word, and a name for every other id of the model."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = WORDS + [f"w{i}" for i in range(len(WORDS), kind.text["vocab_size"])]
    plain = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<pad>"))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=plain,
        eos_token="<|im_end|>",
        pad_token="<pad>",
        additional_special_tokens=["<|im_start|>", *SPECIAL],
        chat_template=TEMPLATE,
    )
    cut = {"patch_size": kind.tower["patch_size"], "merge_size": 2, "min_pixels": 3136, "max_pixels": 1003520}
    processor, video = (getattr(transformers, name) for name in PROCESSORS[kind.family])
    made = processor(transformers.Qwen2VLImageProcessor(**cut), tokenizer, video(**cut), chat_template=TEMPLATE)
    made.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return made


def picture(side: int, order: random.Random) -> Any:
    """Some bright shapes on a noisy square."""
    from PIL import Image, ImageDraw

    image = Image.frombytes("RGB", (side, side), order.randbytes(side * side * 3)).point(lambda value: value // 4)
    pen = ImageDraw.Draw(image)
    for _ in range(6):
        left, top, width = (order.randrange(side // 2) for _ in range(3))
        pen.ellipse((left, top, left + width + 8, top + width + 8), fill=tuple(order.randbytes(3)))
    return image


def difference_of_pictures(model: Any, processor: Any, kind: Kind) -> float:
    """Mean absolute difference of the log-probabilities of TOKENS random tokens behind one picture and behind another."""
    order, device = random.Random(0), next(model.parameters()).device
    text = question_and_words(kind, order)
    one, other = (
        log_probs(model, processor(text=[text], images=[picture(kind.side, order)], return_tensors="pt").to(device))
        for _ in range(2)
    )
    return round(float((one - other).abs().mean()), 4)


def question_and_words(kind: Kind, order: random.Random) -> str:
    """The question, with a place for a picture, and TOKENS random words."""
    words = (f"w{order.randrange(len(WORDS), kind.text['vocab_size'])}" for _ in range(TOKENS))
    return f"<|im_start|> user <|vision_start|><|image_pad|><|vision_end|> what is this ? <|im_end|> {' '.join(words)}"


def log_probs(model: Any, given: Any) -> torch.Tensor:
    """Of the last TOKENS tokens [t], of what a processor has made of a question."""
    with torch.no_grad():
        logits = model(**given).logits[0, -TOKENS - 1 : -1].float()
    found: torch.Tensor = logits.log_softmax(-1).gather(-1, given["input_ids"][0, -TOKENS:, None])[:, 0]
    return found


def write_data(root: Path, kind: Kind, rows: int = 256) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    order, files = random.Random(1), []
    for _ in range(rows):
        picture(kind.side, order).save(stream := io.BytesIO(), "PNG")
        files.append([stream.getvalue()])
    columns = {"prompt": [QUESTION] * rows, "images": files, "answer": ["1"] * rows, "data_source": ["none"] * rows}
    pq.write_table(pa.table(columns), root / "train.parquet")


def job(root: Path, kind: Kind, options: argparse.Namespace) -> dict[str, Any]:
    gpu = options.device == "gpu"
    return {
        "model": {"path": str(root / "model"), "dtype": "bfloat16" if gpu else "float32"}
        | ({} if options.train_vision else {"freeze": ["vision"]}),
        "data": {"train": [str(root / "train.parquet")], "imageKey": "images", "maxPromptTokens": 512},
        "rewards": [{"python": {"path": str(root / "reward.py")}}],
        "algorithm": {"advantage": "grpo"},
        "train": {
            "steps": options.steps + 1,
            "promptsPerStep": kind.prompts,
            "samplesPerPrompt": kind.samples,
            "tokensPerMicroBatch": 8192,
            "optimizer": {"learningRate": 1e-5},
        },
        "trainer": {"device": options.device},
        "rollout": {
            "placement": "colocated",
            "sampling": {"maxTokens": kind.max_tokens},
            "vllmArgs": (jobs.shared_gpu(0.2, 15) if gpu else {}) | {"gdn-prefill-backend": "triton"},
        },
        "checkpoint": {"path": str(root / "run"), "everySteps": 0, "exportHuggingFace": False},
    }


def spec(root: Path, kind: str) -> Any:
    """Of a rank that trains a model of this kind, which is written first."""
    from rljob_api.spec import RLJobSpec

    scratch.once(root / "model", lambda new: write_model(new, KINDS[kind]))
    options = argparse.Namespace(device="gpu", steps=100, train_vision=False)
    return RLJobSpec.model_validate(job(root, KINDS[kind], options) | {"image": "none"})


def sampled(kind: Kind, step: int) -> Any:
    """Four groups of samples with a picture of noise each; drawn by an older policy, so that nothing is compared."""
    import numpy as np

    from rljob_trainer.wire.batch import Batch
    from rljob_trainer.wire.images import Image
    from rljob_trainer.wire.trajectory import Trajectory, prompt
    from rljob_trainer.wire.trajectory import sampled as written

    draw, side = np.random.default_rng(step), kind.side // kind.tower["patch_size"]
    width = 3 * kind.tower["temporal_patch_size"] * kind.tower["patch_size"] ** 2
    samples = []
    for group in range(4):
        image = Image(draw.standard_normal((side * side, width), np.float32), (side, side), 2)
        asked = [20, *[WORDS.index("<|image_pad|>")] * image.tokens, *[21] * 16]
        for i in range(kind.samples):
            answer = draw.integers(len(WORDS), kind.text["vocab_size"], kind.max_tokens).tolist()
            segments = prompt(asked, [(1, image)]), written(answer, [-12.0] * len(answer), step - 1)
            named: dict[str, Any] = {
                "prompt_index": 0,
                "group": group,
                "sample": i,
                "finish_reason": "stop",
                "reward": float(i % 2),
            }
            samples.append(Trajectory(segments=segments, data_source="none", **named))
    return Batch.of(step + 1, samples, {})


if __name__ == "__main__":
    sys.exit(main())
