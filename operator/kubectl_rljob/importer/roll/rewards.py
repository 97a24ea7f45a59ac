"""ROLL's prompts, and what scores the answers."""

from collections.abc import Iterator
from typing import Any

from kubectl_rljob.importer.roll.rows import REWARD_KEYS
from kubectl_rljob.importer.settings import Settings, show
from kubectl_rljob.importer.table import Field, Note, Outcome, Said
from kubectl_rljob.importer.values import items

MATH = ("MathRuleRewardWorker", "math_rule")
JUDGE = "judge it with a python or http reward of your own"
POOL = "a model judges it: a pool in spec.pools, and rewards[].vllm with pool and judge (docs/pools.md)"


def _by_hand(name: str) -> str:
    return POOL if "judge" in name else f"no rule of an RLJob scores it: {JUDGE}"


def prompts(settings: Settings) -> Iterator[Said]:
    """Columns of ROLL's files."""
    d = "actor_train.data_args."
    key = f"{d}prompt" if f"{d}prompt" in settings and f"{d}messages" not in settings else f"{d}messages"
    yield settings.field("data.promptKey", settings[key], key)
    answer = settings[f"{d}response"] or "ground_truth"
    yield Field("data.answerKey", answer, "ROLL's column of the answer")
    yield settings.field("data.dataSourceKey", settings[f"{d}tag"], f"{d}tag")


def rewards(settings: Settings) -> Iterator[Said]:
    """One entry for each tag that a rule of ours scores."""
    found: list[dict[str, Any]] = []
    given = settings.below("rewards")
    names = dict.fromkeys(key.split(".")[0] for key in given)
    for name in names:
        worker, tags = (settings.given.get(f"rewards.{name}.{key}") for key in ("worker_cls", "tag_included"))
        if name in MATH or (worker and str(worker.value).endswith(MATH[0])):
            found += [{"dataSource": str(tag), "rule": "math"} for tag in (items(tags.value) if tags else ["*"])]
        else:
            yield Note(Outcome.LACKING, f"rewards.{name}", _by_hand(name))
        for key in (k for k in given if k.startswith(f"{name}.") and not k.endswith(REWARD_KEYS)):
            yield Note(Outcome.IMPLIED, f"rewards.{key} = {show(given[key].value)}", "of ROLL's own workers")
    if not found:
        found.append({"rule": "math"})
        yield Note(Outcome.CHANGED, "rewards", f"math in their place; {JUDGE}")
    yield Field("rewards", found, ", ".join(f"rewards.{key}" for key in given if key.endswith(REWARD_KEYS)))
