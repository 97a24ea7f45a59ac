"""Writes the workload of benchmarks.step for verl: links to the model with a tokenizer that verl accepts, prompts, a reward function.

    python -m benchmarks.verl.prepare DIRECTORY [--size NAME]

The model's own directory stays as benchmarks.step left it.
"""

import argparse
from pathlib import Path

from transformers import AutoTokenizer

from benchmarks import scratch
from benchmarks.shapes import MODELS, TOKENIZER, model_of
from benchmarks.step import REWARD, prompts

TOKENS = 256
"""Of a prompt."""
COMPUTE_SCORE = """

def compute_score(data_source, solution_str, ground_truth, extra_info=None, **more):
    return reward("", solution_str, ground_truth)
"""


def main() -> None:
    made = argparse.ArgumentParser("python -m benchmarks.verl.prepare")
    made.add_argument("directory", type=Path)
    made.add_argument("--size", choices=list(MODELS), default="7b")
    options = made.parse_args()
    directory, model = options.directory, options.directory / "model"
    scratch.link(model_of(options.size), model, TOKENIZER)
    tokenizer(model, MODELS[options.size]["vocab_size"])
    rows(directory)
    (directory / "reward.py").write_text(REWARD + COMPUTE_SCORE)
    check(directory)
    print("prepared", directory)


def tokenizer(directory: Path, size: int) -> None:
    """A token per digit, and a name for every other id. Of a Qwen2 model verl wants `<|im_end|>`, and a newline that is one token; AutoTokenizer
    reads these files as a Qwen2Tokenizer, which writes the newline as Ċ."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    names = [*"0123456789", *(f"<{i}>" for i in range(10, size))]
    names[11], names[12], names[-1] = "\n", "Ċ", "<|im_end|>"
    digits = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="<10>"))
    digits.pre_tokenizer = pre_tokenizers.Split(Regex(r"\n|."), "isolated")
    end = names[-1]
    made = PreTrainedTokenizerFast(tokenizer_object=digits, eos_token=end, pad_token=end, unk_token="<10>")
    made.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    made.save_pretrained(directory)


def rows(directory: Path) -> None:
    """The prompts of benchmarks.step, as verl's data sets have them."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    prompts(directory / "prompts.parquet", "fixed")
    read = pq.read_table(directory / "prompts.parquet").to_pylist()
    table = pa.table(
        {
            "prompt": [[{"role": "user", "content": row["prompt"]}] for row in read],
            "data_source": [row["data_source"] for row in read],
            "reward_model": [{"style": "rule", "ground_truth": row["answer"]} for row in read],
            "extra_info": [{"index": i} for i in range(len(read))],
        }
    )
    pq.write_table(table, directory / "train.parquet")
    pq.write_table(table.slice(0, 8), directory / "val.parquet")


def check(directory: Path) -> None:
    """As verl reads it. What is wrong here ends its first generation, after minutes."""
    import pyarrow.parquet as pq

    read = AutoTokenizer.from_pretrained(directory / "model")
    (chat,) = pq.read_table(directory / "train.parquet").slice(0, 1).column("prompt").to_pylist()
    ids = read.apply_chat_template(chat, tokenize=True, add_generation_prompt=True, return_dict=False)
    assert len(ids) == TOKENS, len(ids)
    assert max(ids) < 10, ids
    for text in ("\n", "<|im_end|>"):
        assert len(read.encode(text, add_special_tokens=False)) == 1, text


if __name__ == "__main__":
    main()
