"""Reward of a response to a problem of GSM8K: 1 for the right number after `####`, 0.1 for another number there, else 0."""

import re

NUMBER = re.compile(r"####\s*\$?(-?[\d,]*\.?\d+)")


def reward(response: str, answer: str) -> dict[str, float]:
    """`formatted` becomes the metric reward_metrics/formatted."""
    found = NUMBER.findall(response)
    if not found:
        return {"score": 0.0, "formatted": 0.0}
    right = float(found[-1].replace(",", "")) == float(answer.replace(",", ""))
    return {"score": 1.0 if right else 0.1, "formatted": 1.0}
