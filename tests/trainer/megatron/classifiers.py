"""Tiny sequence classifiers, and what transformers says their scores are."""

from pathlib import Path

import torch

from trainer.megatron.kinds import SHAPE


def make_classifier(directory: Path, labels: int = 1, vocabulary: int = 160) -> Path:
    from transformers import AutoModelForSequenceClassification, Qwen2Config

    torch.manual_seed(1)
    config = Qwen2Config(**SHAPE, vocab_size=vocabulary, num_labels=labels, tie_word_embeddings=False)
    model = AutoModelForSequenceClassification.from_config(config)
    for name, parameter in model.named_parameters():
        if name == "score.weight":
            parameter.data.normal_(std=0.1)
        elif "norm" in name or name.endswith("bias"):
            parameter.data.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(directory)
    return directory


@torch.no_grad()
def scores_of_prefixes(directory: Path, tokens: tuple[int, ...]) -> torch.Tensor:
    """[n]: the score of the first 1, 2 ... n tokens."""
    from transformers import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_pretrained(directory, dtype=torch.float32)
    model.config.pad_token_id = None
    return torch.stack([model(torch.tensor([tokens[: i + 1]])).logits[0, 0] for i in range(len(tokens))])
