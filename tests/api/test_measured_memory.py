"""The estimate of host memory against jobs that were measured (docs/evidence/gpus.md, benchmarks/runs), each with colocated servers, before its first
checkpoint."""

from pathlib import Path

import pytest

from benchmarks import step
from benchmarks.shapes import MODELS
from rljob_api.sizing.host import host_memory
from rljob_api.sizing.shape import Shape
from rljob_api.spec import RLJobSpec

GIB = 2**30
ALL = "--size 30b-a3b --gpus 4 --expert 4 --server-tensor 4 --optimizer-on-host --recompute --prompts 16"
MEASURED = [
    ("BB1", "", 7.0),
    ("CC", "", 7.0),
    ("DD", "", 7.1),
    ("KK1", "--prompts 16 --max-tokens 512", 7.3),
    ("N", "--size 0.1b --prompts 8 --max-tokens 64", 6.6),
    ("BB2", "--gpus 2", 11.9),
    ("BB2", "--gpus 2 --tensor 2 --prompts 32", 12.5),
    ("PP", "--size 7b --gpus 2 --pipeline 2 --server-tensor 1 --prompts 32", 12.3),
    ("S", "--size 7b-22-layers --offload --prompts 8", 87.8),
    ("GG", "--size 7b --gpus 2 --tensor 2 --optimizer-on-host --prompts 16", 98.0),
    ("II", f"{ALL} --offload", 434.0),
    ("KK1", ALL, 367.8),
]
"""Lease, options of `benchmarks.step`, and GiB of host memory at most."""


@pytest.mark.parametrize(("lease", "options", "gib"), MEASURED)
def test_a_pod_holds_what_it_was_measured_to_hold(lease: str, options: str, gib: float) -> None:
    asked = step.parser().parse_args(["--placement", "colocated", *options.split()])
    spec = RLJobSpec.model_validate(step.job(asked, Path("/model"), Path("/data")))
    shape = Shape.of(MODELS[asked.size])
    assert shape
    planned = host_memory(spec, shape)
    assert (planned.total - planned.checkpoint) / GIB == pytest.approx(gib, abs=1.3)
