"""Seeds of generation: equal for equal job, step and place in the data, whatever else happened."""

import hashlib


def training_seed(job_uid: str, seed: int, step: int, position: int) -> int:
    """For the first sample of the prompt at `position` of the data, begun in `step`; vLLM gives sample i the seed plus i."""
    return _hash(job_uid, "train", seed, step, position)


def turn_seed(seed: int, sample: int, turn: int) -> int:
    """For the response of number `turn`, from 0, in a sample of an agent's."""
    return _hash("turn", seed, sample, turn)


def continuation_seed(seed: int, sample: int, drawn: int) -> int:
    """For what follows the first `drawn` tokens of a sample. With the seed of its beginning the same random numbers would come again."""
    return _hash(seed, sample, drawn)


def evaluation_seed(job_uid: str, seed: int, name: str, prompt_index: int) -> int:
    """For the first response to a prompt of the set of that name: the same at every evaluation, so that their difference is the policy's."""
    return _hash(job_uid, "evaluation", seed, name, prompt_index)


def _hash(*parts: object) -> int:
    """48 bits: room to add a sample's number within what every sampler takes."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:6])
