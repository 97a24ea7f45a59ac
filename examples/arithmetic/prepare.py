"""Make what the example job starts from: a small model that adds two-digit numbers badly, and problems to learn from.

    python prepare.py OUTPUT_DIR [--seed 0] [--accuracy 0.3] [--architecture qwen2|qwen2_large|qwen3_moe] [--device cpu]

    OUTPUT_DIR/model/                 Hugging Face checkpoint with a character tokenizer; parameters: qwen2 0.3 M, qwen2_large 126 M, qwen3_moe 0.6 M
    OUTPUT_DIR/data/train.parquet     prompt "37+48=", answer "85", data_source "arithmetic"
    OUTPUT_DIR/data/heldout.parquet   problems that are in the training file in neither order of their terms
    OUTPUT_DIR/data/pairs.parquet, pairs_heldout.parquet
                                      the same problems: prompt "37+48=", chosen "85", rejected "75"

The warm-up is supervised training on a careless pupil's answers, who writes most sums backwards ("58" for 85). It stops when a
sample at temperature 1 is right with the given probability. So most groups of samples hold both rewards, and reinforcement
learning has two things to teach: which way to write, and to add more surely.
"""

import argparse
import random
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.nn.functional as F
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3MoeConfig,
)
from transformers.utils.logging import disable_progress_bar

from rljob_trainer.conversion.arithmetic import split_problems
from rljob_trainer.conversion.problems import Problem, write_problems

LARGE = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "initializer_range": 0.02,
}
ARCHITECTURES = {
    "qwen2": Qwen2Config,
    "qwen2_large": lambda **shape: Qwen2Config(**shape | LARGE),
    "qwen3_moe": partial(
        Qwen3MoeConfig,
        head_dim=32,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=128,
        norm_topk_prob=True,
    ),
}
PAD, EOS = "<pad>", "<eos>"
# Sixteen tokens with the two special ones: a vocabulary that every tensor-parallel size divides. This task leaves - and * unused.
CHARACTERS = "0123456789+-*="
ANSWER_TOKENS = 4  # three digits and the end

BACKWARDS = 0.65
BATCH = 64
LEARNING_RATES = {"qwen2": 1e-3, "qwen2_large": 1e-4, "qwen3_moe": 1e-3}
STEPS_BETWEEN_MEASUREMENTS = 20
MEASURED_PROBLEMS = 512
MAX_WARM_UP_STEPS = 3000


class Examples(NamedTuple):
    """Token ids of problems: prompts [problems, 6] and answers [problems, 4], which end in eos and are padded."""

    prompts: Tensor
    answers: Tensor


def make_tokenizer() -> PreTrainedTokenizerFast:
    """One token per character. Nothing is added in front or behind; a character outside the alphabet raises."""
    vocabulary = {token: i for i, token in enumerate([PAD, EOS, *CHARACTERS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=EOS,
        pad_token=PAD,
        clean_up_tokenization_spaces=False,
        model_max_length=512,
    )


def make_model(architecture: str, tokenizer: PreTrainedTokenizerFast, seed: int) -> PreTrainedModel:
    """A random model in float32. Its heads, layers, experts and vocabulary divide by 2, so it can be cut in two any way."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(ARCHITECTURES[architecture](**shape(tokenizer)))
    model.generation_config = GenerationConfig(eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
    return model


def shape(tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    """What all architectures share."""
    return {
        "vocab_size": len(tokenizer),
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,  # of size 32, the smallest that vLLM's CPU kernels take
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,
        "initializer_range": 0.06,  # 0.02 suits wide models; this narrow one learns twice as fast from here
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }


def encode(problems: list[Problem], tokenizer: PreTrainedTokenizerFast, device: str = "cpu") -> Examples:
    """Tokenize problems into rectangles; all prompts are equally long, answers are padded here."""
    # Padding by the tokenizer would be saved with it and then apply to whoever loads it.
    answers = [p.answer + EOS + PAD * (ANSWER_TOKENS - 1 - len(p.answer)) for p in problems]
    return Examples(
        *(
            tokenizer(texts, return_tensors="pt").input_ids.to(device)
            for texts in ([p.prompt for p in problems], answers)
        )
    )


def answer_log_probs(model: PreTrainedModel, examples: Examples) -> Tensor:
    """Log-probability of every answer token [problems, 4], 0 at padding."""
    inputs = torch.cat([examples.prompts, examples.answers[:, :-1]], dim=1)
    logits = model(inputs).logits[:, -ANSWER_TOKENS:]
    log_probs = -F.cross_entropy(logits.transpose(1, 2), examples.answers, reduction="none")
    return log_probs * (examples.answers != model.config.pad_token_id)


@torch.no_grad()
def sampled_accuracy(model: PreTrainedModel, examples: Examples) -> float:
    """Share of right answers among samples at temperature 1: exactly, as the mean probability of the right answer."""
    return answer_log_probs(model, examples).sum(1).exp().mean().item()


def warm_up(
    model: PreTrainedModel, right: Examples, careless: Examples, accuracy: float, seed: int, learning_rate: float
) -> tuple[int, float]:
    """Train on a mixture of right and careless answers to the same prompts until `sampled_accuracy` reaches `accuracy`.

    Returns the steps taken and the accuracy reached. Raises RuntimeError when MAX_WARM_UP_STEPS do not suffice.
    """
    draw = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.0)
    measured = Examples(*(ids[:MEASURED_PROBLEMS] for ids in right))
    reached = 0.0
    for step in range(1, MAX_WARM_UP_STEPS + 1):
        loss = -answer_log_probs(model, draw_mixture(right, careless, draw)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % STEPS_BETWEEN_MEASUREMENTS == 0:
            reached = sampled_accuracy(model, measured)
            if reached >= accuracy:
                return step, reached
    raise RuntimeError(
        f"sampled accuracy is {reached:.2f} after {MAX_WARM_UP_STEPS} warm-up steps, not {accuracy}: ask for less"
    )


def draw_mixture(right: Examples, careless: Examples, draw: torch.Generator) -> Examples:
    """A random batch of prompts with their right answers, or with the careless ones in a share BACKWARDS of the rows."""
    rows = torch.randint(len(right.prompts), (BATCH,), generator=draw).to(right.prompts.device)
    slips = (torch.rand(BATCH, 1, generator=draw) < BACKWARDS).to(right.prompts.device)
    return Examples(right.prompts[rows], torch.where(slips, careless.answers[rows], right.answers[rows]))


def write_pairs(problems: list[Problem], path: Path, seed: int) -> None:
    """Write one parquet row per problem: the right sum, and one that is off by 1 or by 10."""
    order = random.Random(seed)
    wrong = [str(int(p.answer) + order.choice((-10, -1, 1, 10))) for p in problems]
    columns = {"prompt": [p.prompt for p in problems], "chosen": [p.answer for p in problems], "rejected": wrong}
    pq.write_table(pa.table(columns), path)


def save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, path: Path) -> None:
    """Write a Hugging Face directory that every user can read: pods run as another one, and weights are saved with mode 0600."""
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    for file in path.iterdir():
        file.chmod(0o644)


def prepare(output: Path, architecture: str, seed: int, accuracy: float, device: str = "cpu") -> None:
    """Write the model and both data files into `output` and say what was made."""
    train, held_out = split_problems(seed)
    write_problems(train, output / "data" / "train.parquet")
    write_problems(held_out, output / "data" / "heldout.parquet")
    write_pairs(train, output / "data" / "pairs.parquet", seed)
    write_pairs(held_out, output / "data" / "pairs_heldout.parquet", seed)
    tokenizer = make_tokenizer()
    model = make_model(architecture, tokenizer, seed).to(device)
    start = time.monotonic()
    careless = [problem._replace(answer=problem.answer[::-1]) for problem in train]
    right, wrong = encode(train, tokenizer, device), encode(careless, tokenizer, device)
    steps, reached = warm_up(model, right, wrong, accuracy, seed, LEARNING_RATES[architecture])
    unseen = sampled_accuracy(model, encode(held_out, tokenizer, device))
    save(model.cpu(), tokenizer, output / "model")
    print(
        f"{output}: {model.num_parameters():,} parameters, {len(train)} training and {len(held_out)} held-out problems"
    )
    print(
        f"warm-up: {steps} steps, {time.monotonic() - start:.0f} s; sampled accuracy {reached:.2f}, held out {unseen:.2f}"
    )


def main(arguments: list[str]) -> None:
    """Parse the command line and prepare the directory, on one thread so that a seed always gives the same model."""
    parser = argparse.ArgumentParser(description="Make the arithmetic example's starting model and data.")
    parser.add_argument("output", type=Path, metavar="OUTPUT_DIR")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--accuracy", type=float, default=0.3, help="sampled accuracy that ends the warm-up (default 0.3)"
    )
    parser.add_argument(
        "--architecture", choices=list(ARCHITECTURES), default="qwen2", help="of the model (default qwen2)"
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="of the warm-up (default cpu)")
    options = parser.parse_args(arguments)
    if not 0 < options.accuracy <= 1 - BACKWARDS:
        parser.error(
            f"--accuracy {options.accuracy}: must be above 0 and at most {1 - BACKWARDS:.2f}, the share of right warm-up answers"
        )
    torch.set_num_threads(1)
    disable_progress_bar()
    prepare(options.output, options.architecture, options.seed, options.accuracy, options.device)


if __name__ == "__main__":
    main(sys.argv[1:])
