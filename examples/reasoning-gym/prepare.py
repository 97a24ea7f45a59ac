"""Make what the reasoning-gym example starts from: a small model that adds, and mostly counts one too many.

    python prepare.py OUTPUT_DIR [--seed 0] [--set FIELD=VALUE]

    OUTPUT_DIR/reasoning-gym/model/          Hugging Face checkpoint of 0.3 M parameters; a token is a word of the question, or a character
    OUTPUT_DIR/reasoning-gym/untrained/      the same before its warm-up
    OUTPUT_DIR/reasoning-gym/careless.jsonl  the warm-up's examples: questions of the library's chain_sum, two thirds of them answered by one too many

Questions and judge of the job itself are the library's (rljob.yaml). The warm-up is warm-up.yaml in this directory, an RLJob of task sft that runs on
this machine. Needs the package reasoning-gym.
"""

import argparse
import json
import random
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import reasoning_gym
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedTokenizerFast, Qwen2Config

PAD, EOS = "<pad>", "<eos>"
WORDS = ("State", "the", "final", "answer", "to", "following", "arithmetic", "problem", ":")
TOKENS = [PAD, EOS, *WORDS, *"0123456789+-= "]
QUESTIONS = {"min_terms": 3, "max_terms": 3, "min_digits": 1, "max_digits": 1}
"""As in rljob.yaml."""
EXAMPLES, RIGHT = 20_000, 0.35
SLIP = 1
"""Added to the others, which are wrong."""
FAR = 2**20
"""Added to the seed, so that the job's own questions are drawn elsewhere."""
WARM_UP = Path(__file__).with_name("warm-up.yaml")


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Spaces are tokens too. Nothing is added in front or behind; a word outside the vocabulary raises."""
    tokenizer = Tokenizer(models.WordLevel({token: i for i, token in enumerate(TOKENS)}))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(f"{EOS}|[A-Za-z]+|."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=EOS,
        pad_token=PAD,
        clean_up_tokenization_spaces=False,
        model_max_length=512,
    )


def write_model(directory: Path, seed: int) -> None:
    """A random model in float32, and its tokenizer; readable by every user, since pods run as another one."""
    tokenizer = make_tokenizer()
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,  # of size 32, the smallest that vLLM's CPU kernels take
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        initializer_range=0.06,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = AutoModelForCausalLM.from_config(config)
    model.generation_config = GenerationConfig(eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    for file in directory.iterdir():
        file.chmod(0o644)


def write_examples(path: Path, seed: int) -> None:
    """Questions as the library writes them, with the answers of a careless teacher."""
    order = random.Random(seed)
    made = reasoning_gym.create_dataset("chain_sum", size=EXAMPLES, seed=seed + FAR, **QUESTIONS)
    with path.open("w") as file:
        for entry in made:
            slip = 0 if order.random() < RIGHT else SLIP
            row = {"prompt": entry["question"], "response": str(int(entry["answer"]) + slip)}
            file.write(json.dumps(row) + "\n")


def warm_up(output: Path, seed: int, settings: Sequence[str]) -> None:
    """Run the RLJob on this machine and put its export into `output`/reasoning-gym/model. Raises CalledProcessError; it has said why."""
    root = output / "reasoning-gym"
    shutil.rmtree(root / "warm-up", ignore_errors=True)  # a former run, which it would resume
    values = [f"--set={setting}" for setting in (f"data.seed={seed}", *settings)]
    command = [sys.executable, "-m", "rljob_trainer", "run", str(WARM_UP), f"--mount=/data={output}", *values]
    subprocess.run(command, check=True)
    (export,) = root.glob("warm-up/*/huggingface")
    shutil.rmtree(root / "model", ignore_errors=True)
    export.rename(root / "model")
    shutil.rmtree(root / "warm-up")


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description="Make the reasoning-gym example's starting model.")
    parser.add_argument("output", type=Path, metavar="OUTPUT_DIR")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE", help="of warm-up.yaml")
    options = parser.parse_args(arguments)
    root = options.output / "reasoning-gym"
    root.mkdir(parents=True, exist_ok=True)
    write_model(root / "untrained", options.seed)
    write_examples(root / "careless.jsonl", options.seed)
    try:
        warm_up(options.output, options.seed, options.set)
    except subprocess.CalledProcessError:
        sys.exit("prepare.py: the warm-up failed; its last lines say why")


if __name__ == "__main__":
    main(sys.argv[1:])
