"""Conversions of single values that several systems need. They raise ValueError with what is wrong."""

import math
import posixpath
import re
from collections.abc import Callable, Iterable
from typing import Any

from rljob_api import names
from rljob_import.table import Convert


def choice(**ours: str) -> Convert:
    """One of a few words, and ours for each."""

    def convert(value: Any) -> str:
        if str(value) not in ours:
            raise ValueError(f"is none of {', '.join(ours)}, which an RLJob has")
        return ours[str(value)]

    return convert


def at_least(low: int) -> Convert:
    """A number, or `low` in place of smaller ones and of false: -1 is `never` where ours is 0."""

    def convert(value: Any) -> int:
        return low if value is False else max(low, int(_number(value)))

    return convert


def resume(value: Any) -> str:
    """Of a truth: whether a job begins with the newest checkpoint."""
    return "auto" if value else "never"


def whole(value: Any) -> int:
    number = _number(value)
    if number != int(number):
        raise ValueError("is no whole number")
    return int(number)


def real(value: Any) -> float:
    return float(_number(value))


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError("is no number")
    return value


def items(value: Any) -> list[Any]:
    """A list, or the one value that stands for it."""
    return value if isinstance(value, list) else [value]


def text_of(value: Any) -> str:
    """A path or a name, which may look like a number."""
    if value is None or isinstance(value, bool | list | dict):
        raise ValueError("is no text")
    return str(value)


def place(value: Any, root: str) -> str:
    """An absolute path: relative ones, those below a home directory, and names of a hub are below `root`."""
    text = text_of(value).strip().removeprefix("file://")
    text = text if text.startswith("/") else f"{root}/{re.sub(r'^~/?', '', text)}"
    return "/" + posixpath.normpath(re.sub(r"\s+", "_", text)).lstrip("/")


def job_name(parts: Iterable[Any]) -> str:
    """A name that Kubernetes takes: lower-case letters, digits and dashes."""
    text = re.sub(r"[^a-z0-9]+", "-", "-".join(text_of(p) for p in parts if p not in (None, "")).lower())
    return re.sub(r"^[^a-z]+", "", text)[: names.MAX_JOB_NAME].strip("-") or "imported"


def divisor(number: int, wanted: int) -> int:
    """The divisor of `number` that is nearest to `wanted`, the larger of two."""
    small = [d for d in range(1, math.isqrt(max(0, number)) + 1) if number % d == 0]
    return min((e for d in small for e in (d, number // d)), key=lambda d: (abs(d - wanted), -d), default=1)


def product(a: float, b: float) -> float:
    """Without the last digit, which binary numbers get wrong: 3e-6 x 0.1 is 3e-7."""
    return float(f"{a * b:.12g}")


def environment(given: dict[str, Any], owned: Callable[[str], bool]) -> list[dict[str, str]]:
    """`spec.env`, without what the trainer sets itself."""
    return [{"name": name, "value": str(value)} for name, value in given.items() if not owned(name)]


VERL = "verl 1dda039b9 of 2026-08-22"
ROLL = "ROLL 8eb27cc2 of 2026-08-19"
TRINITY = "Trinity-RFT 9051d6374 of April 2026"
LLAMA_FACTORY = "LLaMA-Factory ff6d4d12e of 2026-08-18"
RLINF = "RLinf a3816b596 of 2026-08-22"
"""The versions that keys and defaults of the tables were read from."""
DECAYS = choice(constant="constant", linear="linear", cosine="cosine")
REPLAY = choice(disabled="none", R2="trainer", R3="rollout")
"""Router replay, by the papers' names."""
MULTI_TOKEN = "set model.multiTokenPrediction where it is wanted: its loss gives the policy no gradient"
IMAGES = "preprocessor_config.json of the model directory says how images are scaled"
SEQUENCE_CLIP = {"low": 3e-4, "high": 4e-4}
"""Of gspo's paper, where a ratio is that of a whole response and a clip of 0.2 never binds."""
