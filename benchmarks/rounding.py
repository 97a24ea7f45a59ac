"""How much of a difference between trainer and server rounding alone explains: a model in bfloat16 against the same weights in float32.

    python -m benchmarks.rounding [--kinds qwen3_5 qwen3_5_moe qwen3_vl_moe] [--prompts 12]

By transformers, on a CPU, with the random models and pictures of benchmarks.vision and 64 random tokens behind each picture. Prints for each kind the
mean and the largest difference of a token's log-probability; with experts also for which share of tokens some layer chooses other experts, and the
means of those and of all others.
"""

import argparse
import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers

from benchmarks import jobs, vision
from benchmarks.vision_kinds import KINDS

ROUTER = "mlp.gate"
"""How the name of a layer ends that chooses experts."""


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.rounding")
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=["qwen3_5", "qwen3_5_moe", "qwen3_vl_moe"])
    parser.add_argument("--prompts", type=int, default=12)
    options = parser.parse_args()
    print(jobs.table([measure(kind, options.prompts) for kind in options.kinds]))


def measure(name: str, prompts: int) -> dict[str, Any]:
    """Of `prompts` pictures with vision.TOKENS tokens behind each."""
    kind, order = KINDS[name], random.Random(3)
    differences, changed = list[torch.Tensor](), list[torch.Tensor]()
    with tempfile.TemporaryDirectory() as directory:
        vision.write_model(Path(directory), kind)
        processor = transformers.AutoProcessor.from_pretrained(directory)
        exact, rounded = (
            transformers.AutoModelForImageTextToText.from_pretrained(directory, dtype=dtype).eval()
            for dtype in (torch.float32, torch.bfloat16)
        )
    for _ in range(prompts):
        text = vision.question_and_words(kind, order)
        given = processor(text=[text], images=[vision.picture(kind.side, order)], return_tensors="pt")
        (one, its), (other, others) = measured(exact, given), measured(rounded, given)
        differences.append((one - other).abs())
        changed.append((its != others).any(-1).any(0))
    return summary(name, torch.cat(differences), torch.cat(changed))


def measured(model: Any, given: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities [t] of vision.TOKENS tokens, and the experts that the layers choose at the positions before them [layer, t, k]; [0, t, 0]
    without experts."""
    with chosen(model) as choices:
        found = vision.log_probs(model, given)
    experts = [choice.sort(-1).values[-vision.TOKENS - 1 : -1] for choice in choices]
    return found, torch.stack(experts) if experts else torch.zeros(0, vision.TOKENS, 0, dtype=torch.int64)


@contextmanager
def chosen(model: Any) -> Iterator[list[torch.Tensor]]:
    """The experts of each layer of experts [t, k], as they are chosen."""
    choices = list[torch.Tensor]()

    def keep(_module: Any, _given: Any, made: tuple[torch.Tensor, ...]) -> None:
        choices.extend(part for part in made if part.dtype == torch.int64)

    routers = [module for name, module in model.named_modules() if name.endswith(ROUTER)]
    handles = [router.register_forward_hook(keep) for router in routers]
    try:
        yield choices
    finally:
        for handle in handles:
            handle.remove()


def summary(name: str, differences: torch.Tensor, changed: torch.Tensor) -> dict[str, Any]:
    """`changed` [t]: whether some layer has chosen other experts."""
    numbers = {"mean": differences.mean(), "largest": differences.max()}
    if changed.any():
        numbers |= {
            "changed": changed.float().mean(),
            "mean_of_changed": differences[changed].mean(),
            "mean_of_others": differences[~changed].mean(),
        }
    return {"kind": name} | {key: round(float(number), 4) for key, number in numbers.items()}


if __name__ == "__main__":
    main()
