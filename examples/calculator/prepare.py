"""Make what the calculator example starts from: a small model that mostly guesses sums of three numbers, and sometimes calls add(a,b).

    python prepare.py OUTPUT_DIR [--seed 0] [--tools] [--set FIELD=VALUE]

    OUTPUT_DIR/calculator/model/             Hugging Face checkpoint of 0.3 M parameters, one token per character and for what a call begins with
    OUTPUT_DIR/calculator/untrained/         the same before its warm-up
    OUTPUT_DIR/calculator/train.parquet      prompt "37+48+12=", answer "97", data_source "calculator"; heldout.parquet: other problems
    OUTPUT_DIR/calculator/calls.parquet      the warm-up's examples that call: "add(37,48)85;add(85,12)97;97"
    OUTPUT_DIR/calculator/guesses.parquet    and those that guess: a number near the sum

With --tools a call is `<tool_call>{"name": "add", "arguments": {"a": 37, "b": 48}}</tool_call>`, as Hermes and Qwen write it, and the tokenizer has
a chat template. The warm-up is warm-up.yaml in this directory, an RLJob of task sft that runs on this machine.
"""

import argparse
import random
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedTokenizerFast, Qwen2Config

PAD, EOS = "<pad>", "<eos>"
TOKENS = [PAD, EOS, *"0123456789+=,;)"]
TEMPLATE = "{% for m in messages %}{{ m.content }}{{ {'assistant': '<eos>', 'tool': ';'}.get(m.role, '') }}{% endfor %}"
"""Of conversations: little more than what is said. The functions are not shown, since this model has learnt to call the one that there is."""
TERMS = range(10, 100)
PROBLEMS, HELD_OUT = 6000, 256
NEAR = 30
"""A guess is off by up to so much."""
WARM_UP = Path(__file__).with_name("warm-up.yaml")
Problem = tuple[int, int, int]


@dataclass(frozen=True)
class Calls:
    """How add(a, b) is written: `begin` a `between` b `end`."""

    begin: str
    between: str
    end: str
    template: str | None = None

    def __call__(self, a: int, b: int) -> str:
        return f"{self.begin}{a}{self.between}{b}{self.end}"


PLAIN = Calls("add(", ",", ")")
TOOLS = Calls('<tool_call>{"name": "add", "arguments": {"a": ', ', "b": ', f"}}}}</tool_call>{EOS}", TEMPLATE)


def make_tokenizer(calls: Calls) -> PreTrainedTokenizerFast:
    """One token per character, and one for each part of a call. Nothing is added in front or behind; others are left out once it is loaded."""
    tokenizer = Tokenizer(models.WordLevel({token: i for i, token in enumerate(TOKENS)}))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    parts = (calls.begin, calls.between, calls.end.removesuffix(EOS))
    # found before anything is split, by whatever class the tokenizer is loaded as
    tokenizer.add_tokens([part for part in parts if part not in TOKENS])
    found = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=EOS,
        pad_token=PAD,
        clean_up_tokenization_spaces=False,
        model_max_length=512,
    )
    found.chat_template = calls.template
    return found


def write_model(directory: Path, calls: Calls, seed: int) -> None:
    """A random model in float32, and its tokenizer; readable by every user, since pods run as another one."""
    tokenizer = make_tokenizer(calls)
    torch.manual_seed(seed)
    ids = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    shape = {
        "vocab_size": len(tokenizer),
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,
        "initializer_range": 0.06,
        "bos_token_id": None,
    }
    model = AutoModelForCausalLM.from_config(Qwen2Config(**shape, **ids))
    model.generation_config = GenerationConfig(**ids)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    for file in directory.iterdir():
        file.chmod(0o644)


def write_data(directory: Path, calls: Calls, seed: int) -> None:
    """All files of rows."""
    order = random.Random(seed)
    problems: list[Problem] = [(a, b, c) for a in TERMS for b in TERMS for c in TERMS]
    chosen = order.sample(problems, PROBLEMS + HELD_OUT)
    train, held_out = chosen[HELD_OUT:], chosen[:HELD_OUT]
    for name, rows in (("train", train), ("heldout", held_out)):
        write(
            directory / f"{name}.parquet",
            rows,
            answer=[str(sum(p)) for p in rows],
            data_source=["calculator"] * len(rows),
        )
    write(directory / "calls.parquet", train, response=[called(p, calls) for p in train])
    guesses = [str(sum(p) + order.randint(-NEAR, NEAR)) for p in train]
    write(directory / "guesses.parquet", train, response=guesses)


def write(path: Path, problems: Sequence[Problem], **columns: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    prompts = [f"{'+'.join(map(str, problem))}=" for problem in problems]
    pq.write_table(pa.table({"prompt": prompts, **columns}), path)


def called(problem: Problem, calls: Calls) -> str:
    """The whole response of whoever lets the tool add, with what the tool says."""
    a, b, c = problem
    return f"{calls(a, b)}{a + b};{calls(a + b, c)}{a + b + c};{a + b + c}"


def warm_up(output: Path, settings: Sequence[str]) -> None:
    """Run the RLJob on this machine and put its export into `output`/calculator/model. Raises CalledProcessError when it fails."""
    run, model = output / "calculator/warm-up", output / "calculator/model"
    shutil.rmtree(run, ignore_errors=True)  # a former run, which it would resume
    values = [f"--set={setting}" for setting in settings]
    command = [sys.executable, "-m", "rljob_trainer", "run", str(WARM_UP), f"--mount=/data={output}", *values]
    subprocess.run(command, check=True)
    (export,) = run.glob("*/huggingface")
    shutil.rmtree(model, ignore_errors=True)
    export.rename(model)
    shutil.rmtree(run)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description="Make the calculator example's starting model and data.")
    parser.add_argument("output", type=Path, metavar="OUTPUT_DIR")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tools", action="store_true", help="calls in the format of tools and chat completions")
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE", help="of warm-up.yaml")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    calls = TOOLS if options.tools else PLAIN
    write_data(options.output / "calculator", calls, options.seed)
    write_model(options.output / "calculator/untrained", calls, options.seed)
    try:
        warm_up(options.output, [f"data.seed={options.seed}", *options.set])
    except subprocess.CalledProcessError:
        sys.exit("prepare.py: the warm-up failed; its last lines say why")


if __name__ == "__main__":
    main(sys.argv[1:])
