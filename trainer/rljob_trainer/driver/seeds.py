"""Seeds of generation: equal for equal job, step, prompt and place in the step, whatever else happened."""

import hashlib


def training_seed(job_uid: str, seed: int, step: int, prompt_index: int, place: int) -> int:
    """For a prompt's first sample at `place` of `step`, where small data may bring it twice; vLLM gives sample i the seed plus i."""
    return _hash(job_uid, "train", seed, step, prompt_index, place)


def evaluation_seed(job_uid: str, seed: int, prompt_index: int) -> int:
    """The same at every evaluation, so that their difference is the policy's."""
    return _hash(job_uid, "evaluation", seed, prompt_index)


def _hash(*parts: object) -> int:
    """48 bits: room to add a sample's number within what every sampler takes."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:6])
