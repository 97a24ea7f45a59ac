"""What a pod that is not ours to trust writes as its report: the shape is right, and each value may be anything."""

import math
from typing import Any

from hypothesis import strategies as st

from rljob_api.metrics import METRICS

FLOATS = st.sampled_from([0.0, 1.5, -1.0, 7.0, math.nan, math.inf, -math.inf, 1e300, 1e308, 1e30])
INTEGERS = st.sampled_from([0, 1, 2, 7, 7, 20, -1, 2**31, 2**63, 10**30])
TEXTS = st.sampled_from(
    ["", "x", "\x1b[31mred\x1b[0m", "a\nstep 77777 is saved", "\u202egnp.exe", "\x00\x07", "é" * 2000, "/d\x9b2J"]
)
JUNK = st.recursive(
    FLOATS | INTEGERS | TEXTS | st.none() | st.booleans(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)


def objects(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(fields)


COUNT = st.integers(0, 20) | st.integers(0, 20) | st.integers(0, 20) | INTEGERS
CHECKPOINT = objects(step=COUNT, attempt=COUNT, path=TEXTS, digest=TEXTS, layout=TEXTS, time=FLOATS)
POINT = objects(step=st.integers(0, 20), reward=FLOATS, loss=FLOATS, seconds=FLOATS)
METRIC = st.sampled_from([*list(METRICS)[:5], "unknown", "\x1b[2J", "reward_metrics/acc", "reward_metrics/\x1b[2J"])
PROGRESS = objects(
    phase=st.sampled_from(["loading", "waiting", "training", "saving"]),
    heartbeat=COUNT,
    step=COUNT,
    startedFrom=COUNT | st.none(),
    policyStep=COUNT,
    digest=TEXTS,
    metrics=st.dictionaries(METRIC, FLOATS),
    history=st.lists(POINT, max_size=3),
    pace=FLOATS | TEXTS | st.none(),
    checkpoints=st.lists(CHECKPOINT, max_size=3),
    rollouts=st.lists(objects(pod=TEXTS, policyStep=COUNT), max_size=2),
    export=TEXTS,
    evaluation=st.dictionaries(st.sampled_from(["first", "last", "middle"]), FLOATS),
    backend=TEXTS,
    workers=st.dictionaries(TEXTS, objects(calls=COUNT, needed=COUNT, enough=COUNT | st.none()), max_size=2),
)
FAILURE = objects(
    kind=st.sampled_from(["application", "configuration", "collective", "killed"]),
    rank=COUNT,
    exception=TEXTS,
    message=TEXTS,
    lines=st.lists(TEXTS, max_size=3),
    time=FLOATS,
    field=TEXTS,
)
REPORT = objects(
    attempt=st.just(1),
    state=st.sampled_from(["idle", "running", "stopped"]),
    result=st.sampled_from(["succeeded", "drained", "failed", "stopped"]),
    failure=FAILURE | st.none(),
    progress=PROGRESS | st.none(),
)

MARKS = {*map(chr, [*range(9), *range(11, 32), *range(127, 160)]), "\u202e"}
"""Characters that move a cursor, change a colour, turn text around or end a line that is not theirs. Line feeds and tabs are not among them."""
