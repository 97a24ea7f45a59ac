"""A script that has many samples open at a time, checks that each has its own answer, and ends without a word.

`python many_samples.py URL BASE_MODEL FIRST COUNT`: prompts are the tokens from FIRST on, and a prompt's answer is its token.
"""

import os
import sys

import tinker
from tinker import types

from rljob_trainer.machine import raise_open_files

SECONDS = 600


def main(url: str, base_model: str, first: str, count: str) -> None:
    raise_open_files()
    sampler = tinker.ServiceClient(base_url=url, api_key="tml-any").create_sampling_client(base_model=base_model)
    tokens, once = range(int(first), int(first) + int(count)), types.SamplingParams(max_tokens=1)
    asked = [sampler.sample(types.ModelInput.from_ints([token]), 1, once) for token in tokens]
    found = [future.result(timeout=SECONDS).sequences[0].tokens for future in asked]
    assert found == [[token] for token in tokens]
    os._exit(0)  # its session remains, and what is kept for it


if __name__ == "__main__":
    main(*sys.argv[1:])
