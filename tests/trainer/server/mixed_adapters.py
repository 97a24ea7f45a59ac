"""vLLM with our products: `python mixed_adapters.py MODEL ADAPTERS` prints JSON, the tokens that it samples after each of PROMPTS with their
log-probabilities, the base model's after the first one and the adapters' after the second one, in one batch, with a place for one set of adapters."""

import json
import sys
from typing import Any

from rljob_trainer.server import compat

PROMPTS = ((5, 6, 7, 8, 9), (40, 41, 42, 43, 44, 45, 46))


def main(model: str, adapters: str) -> None:
    compat.install()
    from vllm import LLM, SamplingParams
    from vllm.lora.request import LoRARequest

    server = LLM(
        model,
        dtype="float32",
        enable_lora=True,
        max_loras=1,
        max_lora_rank=8,
        max_model_len=64,
        enforce_eager=True,
        skip_tokenizer_init=True,
        gpu_memory_utilization=0.05,  # of the memory of the CPU
        kv_cache_memory_bytes=2**26,
    )
    settings = SamplingParams(max_tokens=4, seed=1, logprobs=0, detokenize=False, ignore_eos=True)
    prompts: list[Any] = [{"prompt_token_ids": [*prompt]} for prompt in PROMPTS]
    asked = [None, LoRARequest("adapters", 1, adapters)]
    answers = [answer.outputs[0] for answer in server.generate(prompts, settings, lora_request=asked)]
    said = [[found[token].logprob for token, found in zip(a.token_ids, a.logprobs or (), strict=True)] for a in answers]
    print(json.dumps([[list(a.token_ids), values] for a, values in zip(answers, said, strict=True)]))


if __name__ == "__main__":
    main(*sys.argv[1:])
