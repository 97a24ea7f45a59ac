"""Make what the example job starts from: a small model that adds two-digit numbers badly, and problems to learn from.

    python prepare.py OUTPUT_DIR [--seed 0] [--architecture qwen2|qwen2_large|qwen3_moe] [--set FIELD=VALUE]

    OUTPUT_DIR/model/                 Hugging Face checkpoint with a character tokenizer; parameters: qwen2 0.3 M, qwen2_large 126 M, qwen3_moe 0.6 M
    OUTPUT_DIR/untrained/             the same before its warm-up
    OUTPUT_DIR/data/train.parquet     prompt "37+48=", answer "85", data_source "arithmetic"
    OUTPUT_DIR/data/backwards.parquet the same problems with the answer "58"
    OUTPUT_DIR/data/heldout.parquet   problems that are in the training file in neither order of their terms
    OUTPUT_DIR/data/pairs.parquet, pairs_heldout.parquet
                                      the same problems: prompt "37+48=", chosen "85", rejected "75"
    OUTPUT_DIR/data/pairs_backwards.parquet, pairs_backwards_heldout.parquet
                                      the same with "58" rejected, without sums such as 88

The warm-up is warm-up.yaml beside this file, an RLJob of task sft that runs on this machine: it learns from a careless teacher's answers, which are
mostly backwards. A sample at temperature 1 is then right a third of the time. So most groups of samples hold both rewards, and reinforcement
learning has two things to teach: which way to write, and to add more surely.
"""

import argparse
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
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

from rljob_trainer.conversion.sets import Problem, split_problems, write_problems

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

WARM_UP = Path(__file__).with_name("warm-up.yaml")
LEARNING_RATES = {"qwen2": 1e-3, "qwen2_large": 1e-4, "qwen3_moe": 1e-3}
MEASURED_PROBLEMS = 512


class Examples(NamedTuple):
    """Token ids of problems: prompts [problems, 6] and answers [problems, 4], which end in eos and are padded."""

    prompts: Tensor
    answers: Tensor


def make_tokenizer() -> PreTrainedTokenizerFast:
    """One token per character. Nothing is added in front or behind; others are left out once it is loaded."""
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


def encode(problems: list[Problem], tokenizer: PreTrainedTokenizerFast) -> Examples:
    """Tokenize problems into rectangles; all prompts are equally long, answers are padded here."""
    # Padding by the tokenizer would be saved with it and then apply to whoever loads it.
    answers = [p.answer + EOS + PAD * (ANSWER_TOKENS - 1 - len(p.answer)) for p in problems]
    return Examples(
        *(tokenizer(texts, return_tensors="pt").input_ids for texts in ([p.prompt for p in problems], answers))
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


def warm_up(output: Path, architecture: str, seed: int, settings: Sequence[str]) -> None:
    """Run the RLJob on this machine and put its export into `output`/model. Raises CalledProcessError when it fails; it has said why."""
    shutil.rmtree(output / "warm-up", ignore_errors=True)  # a former run, which it would resume
    learning_rate = f"train.optimizer.learningRate={LEARNING_RATES[architecture]}"
    values = [f"--set={setting}" for setting in (f"data.seed={seed}", learning_rate, *settings)]
    command = [sys.executable, "-m", "rljob_trainer", "run", str(WARM_UP), f"--mount=/data={output}", *values]
    subprocess.run(command, check=True)
    (export,) = output.glob("warm-up/*/huggingface")
    shutil.rmtree(output / "model", ignore_errors=True)
    export.rename(output / "model")
    shutil.rmtree(output / "warm-up")


def write_pairs(problems: list[Problem], wrong: Callable[[Problem], str], path: Path) -> None:
    """Write one parquet row per problem: the right sum, and what `wrong` makes of it, if that is another one."""
    rows = [(p.prompt, p.answer, found) for p in problems if (found := wrong(p)) != p.answer]
    columns = dict(zip(("prompt", "chosen", "rejected"), map(list, zip(*rows, strict=True)), strict=True))
    pq.write_table(pa.table(columns), path)


def write_data(train: list[Problem], held_out: list[Problem], directory: Path, seed: int) -> None:
    """All data files."""
    order = random.Random(seed)
    write_problems(train, directory / "train.parquet")
    write_problems([p._replace(answer=backwards(p)) for p in train], directory / "backwards.parquet")
    write_problems(held_out, directory / "heldout.parquet")
    for problems, suffix in ((train, ""), (held_out, "_heldout")):
        write_pairs(problems, partial(slip, order), directory / f"pairs{suffix}.parquet")
        write_pairs(problems, backwards, directory / f"pairs_backwards{suffix}.parquet")


def slip(order: random.Random, problem: Problem) -> str:
    """A sum that is off by 1 or by 10."""
    return str(int(problem.answer) + order.choice((-10, -1, 1, 10)))


def backwards(problem: Problem) -> str:
    return problem.answer[::-1]


def write_start(output: Path, architecture: str, seed: int) -> None:
    """Write all data files, and the model before its warm-up."""
    train, held_out = split_problems(seed)
    write_data(train, held_out, output / "data", seed)
    tokenizer = make_tokenizer()
    model = make_model(architecture, tokenizer, seed)
    model.save_pretrained(output / "untrained")
    tokenizer.save_pretrained(output / "untrained")
    make_readable(output / "untrained")
    print(
        f"{output}: {model.num_parameters():,} parameters, {len(train)} training and {len(held_out)} held-out problems",
        flush=True,
    )


def make_readable(directory: Path) -> None:
    """By every user: pods run as another one, and weights are saved with mode 0600."""
    for file in directory.iterdir():
        file.chmod(0o644)


def measured(output: Path, seed: int) -> tuple[float, float]:
    """Sampled accuracy of the model in `output`, on problems that it has learnt from and on held-out ones."""
    tokenizer, model = make_tokenizer(), AutoModelForCausalLM.from_pretrained(output / "model")
    train, held_out = (
        sampled_accuracy(model, encode(problems[:MEASURED_PROBLEMS], tokenizer)) for problems in split_problems(seed)
    )
    return train, held_out


def prepare(output: Path, architecture: str, seed: int, settings: Sequence[str] = ()) -> None:
    """Write the model and all data files into `output` and say what was made. `settings`: values of the warm-up's spec."""
    write_start(output, architecture, seed)
    start = time.monotonic()
    warm_up(output, architecture, seed, settings)
    seconds = time.monotonic() - start
    train, held_out = measured(output, seed)
    print(f"warm-up: {seconds:.0f} s; sampled accuracy {train:.2f}, held out {held_out:.2f}")
    print(f"model: {output / 'model'}, which the warm-up's export has become; data: {output / 'data'}")


def main(arguments: list[str]) -> None:
    """Parse the command line and prepare the directory, on one thread so that a seed always gives the same model."""
    parser = argparse.ArgumentParser(description="Make the arithmetic example's starting model and data.")
    parser.add_argument("output", type=Path, metavar="OUTPUT_DIR")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--architecture", choices=list(ARCHITECTURES), default="qwen2", help="of the model (default qwen2)"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="FIELD=VALUE", help="of warm-up.yaml, such as trainer.device=gpu"
    )
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    disable_progress_bar()
    try:
        prepare(options.output, options.architecture, options.seed, options.set)
    except subprocess.CalledProcessError:
        sys.exit("prepare.py: the warm-up failed; its last lines say why")


if __name__ == "__main__":
    main(sys.argv[1:])
