"""Samples of vLLM's engine, as a server of an exact job computes them: `python served_log_probs.py MODEL DTYPE OUT`.

A process of its own, because the engine's patches change vLLM for all of it."""

import random
import sys
from pathlib import Path

LENGTHS = (3, 40, 130, 17, 90)
TEMPERATURES = (1.0, 0.7)


def main(model: str, dtype: str, out: str) -> None:
    """Prompts of several lengths together, one of which begins like another, so that it takes keys and values from the cache."""
    import torch

    from rljob_trainer.server import compat

    compat.install()
    from vllm import LLM, SamplingParams

    engine = LLM(model, dtype=dtype, enforce_eager=True, skip_tokenizer_init=True, logprobs_mode="processed_logprobs")
    draw = random.Random(0)
    prompts = [draw.choices(range(150), k=n) for n in LENGTHS]
    prompts.append(prompts[2][:128] + prompts[3])
    found = []
    for temperature in TEMPERATURES:
        drawn = SamplingParams(temperature=temperature, max_tokens=24, logprobs=0, ignore_eos=True, detokenize=False)
        for answer in engine.generate([{"prompt_token_ids": p} for p in prompts], drawn, use_tqdm=False):
            tokens, each = list(answer.outputs[0].token_ids), answer.outputs[0].logprobs
            values = [row[token].logprob for row, token in zip(each, tokens, strict=True)]
            found.append((temperature, answer.prompt_token_ids, tokens, values))
    torch.save(found, Path(out))


if __name__ == "__main__":
    main(*sys.argv[1:])
