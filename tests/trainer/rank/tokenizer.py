"""A tokenizer of numbers, for models of a few tokens."""

from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast


def write_tokenizer(model: Path, words: int) -> Path:
    """Into the model's directory, which is returned: the words 0 to `words` - 1 are tokens, and the last of them ends a text."""
    tokenizer = Tokenizer(models.WordLevel({str(i): i for i in range(words)}, unk_token="0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=str(words - 1)).save_pretrained(model)
    return model
