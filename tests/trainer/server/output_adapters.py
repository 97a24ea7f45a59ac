"""vLLM alone with adapters of the output layer: `python output_adapters.py MODEL ADAPTERS` prints JSON, the tokens that it samples after each of
PROMPTS with their log-probabilities, and what comes of scoring the prompts."""

import json
import sys
from typing import Any

from vllm import LLM, SamplingParams
from vllm.lora.request import LoRARequest

PROMPTS = ((5, 6, 7, 8, 9), (40, 41, 42, 43, 44, 45, 46))


def main(model: str, adapters: str) -> None:
    server = LLM(
        model,
        dtype="float32",
        enable_lora=True,
        max_lora_rank=8,
        max_model_len=64,
        enforce_eager=True,
        skip_tokenizer_init=True,
        gpu_memory_utilization=0.05,  # of the memory of the CPU
        kv_cache_memory_bytes=2**26,
    )
    chosen = LoRARequest("adapters", 1, adapters)

    def generate(**scored: int) -> list[Any]:
        settings = SamplingParams(max_tokens=4, seed=1, logprobs=0, detokenize=False, ignore_eos=True, **scored)
        prompts: list[Any] = [{"prompt_token_ids": [*prompt]} for prompt in PROMPTS]
        return [answer.outputs[0] for answer in server.generate(prompts, settings, lora_request=chosen)]

    sampled = [
        (
            list(answer.token_ids),
            [found[token].logprob for token, found in zip(answer.token_ids, answer.logprobs, strict=True)],
        )
        for answer in generate()
    ]
    try:
        generate(prompt_logprobs=0)
        scoring = "works"
    except RuntimeError as error:
        scoring = str(error)
    print(json.dumps({"sampled": sampled, "scoring": scoring}))


if __name__ == "__main__":
    main(*sys.argv[1:])
