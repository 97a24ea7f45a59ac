"""Names of algorithms, formulas that an RLJob does not have, and how held-out prompts are answered."""

from collections.abc import Iterable, Iterator
from typing import Literal

from rljob_import.settings import Settings, show
from rljob_import.table import Field, Said

AGGREGATIONS = {
    "token-mean": "tokenMean",
    "seq-mean-token-mean": "sequenceMeanTokenMean",
    "seq-mean-token-sum": "sequenceMeanTokenSum",
    "seq-mean-token-sum-norm": "sequenceMeanTokenSumNorm",
}
ESTIMATORS = {"low_var_kl": "k3", "k3": "k3", "mse": "k2", "k2": "k2", "kl": "k1", "k1": "k1"}
"""verl's words, which its relatives have as well, and ours."""
PAGE = "docs/algorithms.md#functions-of-your-own"


def own(settings: Settings, key: str, part: Literal["advantage", "loss"], known: Iterable[str]) -> Iterator[Said]:
    """What a key becomes whose value is none of the `known`: refused, unless --formula names a file with a function `advantage` or `loss`."""
    path = settings.options.formula
    if path is None:
        text = f"{show(settings[key])} is none of {', '.join(dict.fromkeys(known))}"
        yield settings.problem(f"{text}: write it as a function ({PAGE}), and name its file with --formula", key)
        return
    yield settings.field(f"algorithm.{part}", "python", key)
    yield Field(f"algorithm.{part}Function.path", path, "--formula")
    yield Field(f"algorithm.{part}Function.function", part, "--formula")
    yield settings.changed(key, f"the function `{part}` of {path} in its place ({PAGE})")


def responses(settings: Settings, sampled: bool, top_p: str, top_k: str, count: str) -> Iterator[Said]:
    """What the keys for the narrowed distribution and the responses per prompt become. They say nothing unless responses are `sampled`."""
    if not sampled:
        for key in (top_p, top_k, count):
            if key in settings:
                yield settings.implied(key, "held-out prompts are answered greedily")
        return
    yield settings.field("evaluation.sampling.topP", float(settings.number(top_p)), top_p)
    yield settings.field("evaluation.sampling.topK", max(0, settings.integer(top_k)), top_k)
    yield settings.field("evaluation.samplesPerPrompt", settings.integer(count), count)
