"""Seeds of generation. They depend only on job, step and position in the data, so that a resumed run samples the same responses."""

import hashlib


def training_seed(job_uid: str, seed: int, step: int, position: int) -> int:
    """Seed of sample 0 of the prompt at `position` of the data, begun in `step`. vLLM adds i for sample i."""
    return _hash(job_uid, "train", seed, step, position)


def turn_seed(seed: int, sample: int, turn: int) -> int:
    """Seed of turn number `turn`, from 0, of an agent's sample."""
    return _hash("turn", seed, sample, turn)


def continuation_seed(seed: int, sample: int, generated: int) -> int:
    """Seed for continuing a sample after its first `generated` tokens. The original seed would repeat the random numbers of its beginning."""
    return _hash(seed, sample, generated)


def evaluation_seed(job_uid: str, seed: int, name: str, prompt_index: int) -> int:
    """Seed of response 0 to a held-out prompt of the set `name`. It is the same at every evaluation, so that only the policy makes a difference."""
    return _hash(job_uid, "evaluation", seed, name, prompt_index)


def _hash(*parts: object) -> int:
    """48 bits, so that adding a sample's index stays within 64 bits."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:6])
