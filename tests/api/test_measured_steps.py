"""The model of a step's seconds against all steps that were measured and kept: benchmarks/runs has recorded jobs, and in `evidence-steps` those of
which docs/evidence/gpus.md has the figures only. First steps, which compile kernels, do not count."""

import json
import math
import statistics
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from benchmarks import step
from benchmarks.shapes import MODELS, shapes
from rljob_api.sizing.devices import device
from rljob_api.sizing.network import cards
from rljob_api.sizing.shape import Shape
from rljob_api.sizing.speed import Speed, speed
from rljob_api.sizing.training import Machine
from rljob_api.spec import RLJobSpec

RUNS = Path(__file__).parents[2] / "benchmarks/runs"
JOBS = ("step-1.5b-h100", "step-1.5b-h200", "step-7b-h200", "step-30b-h200", "exact-h200")
SLOW_HOSTS = ("exact-h200", "step-1.5b-h200")
"""Of machines with slow processors, or on which several jobs ran at a time. Generation depends on these."""
PROMPT = 100
"""Tokens of a prompt in a packed batch."""


class Measured(NamedTuple):
    """The options of a benchmark, and what was measured, in seconds."""

    name: str
    card: str
    options: Namespace
    train: float
    generate: float | None
    grouped: bool
    """Whether the products of experts were one kernel, as on Hopper since lease RR."""


def recorded(file: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (RUNS / f"{file}.jsonl").read_text().splitlines()]


def measured() -> list[Measured]:
    jobs = [of_job(file, row) for file in JOBS for row in recorded(file) if row.get("program") == "rljob"]
    pages = [of_row(row, row["train"], row.get("generate")) for row in recorded("evidence-steps")]
    return [*(job for job in jobs if not job.options.exact), *pages]


def of_job(file: str, row: dict[str, Any]) -> Measured:
    """The median of its steps behind the first."""
    later = [found for number, found in row["steps"].items() if number != "1"]
    generate = None if file in SLOW_HOSTS else statistics.median(found["generate"] for found in later)
    card = row.get("card", file.rpartition("-")[2]).lower()
    return of_row(row | {"card": card}, statistics.median(found["train"] for found in later), generate)


def of_row(row: dict[str, Any], train: float, generate: float | None) -> Measured:
    plain = vars(step.parser().parse_args(["--placement", "colocated"])) | {"shape": "", "first": 0, "tokens": 0}
    options = plain | {key: row[key] for key in plain.keys() & row.keys() - {"steps"} if row[key] is not None}
    sizes = (f"{key} {options[key]}" for key in ("tensor", "pipeline", "expert") if options[key] > 1)
    more = (key for key in ("lora", "offload", "optimizer_on_host") if options[key])
    what = options["shape"] or f"{options['prompts']} prompts"
    name = ", ".join([f"{row['lease']}: {options['size']}", f"{options['gpus']} GPUs", *sizes, what, *more])
    return Measured(name, row["card"], Namespace(**options), train, generate, row.get("grouped", False))


MEASURED = measured()
GENERATED = [row for row in MEASURED if row.generate is not None]
ONE_BY_ONE = [row for row in MEASURED if row.options.expert > 1 and not row.grouped]


def modelled(row: Measured) -> Speed:
    gpu = device(row.card)
    assert gpu.rates
    machine = Machine(replace(gpu.rates, grouped=row.grouped), gpu.bytes, cards("8x400g"))
    return speed(spec_of(row.options), shape_of(row), machine)


def shape_of(row: Measured) -> Shape:
    shape = Shape.of(MODELS[row.options.size])
    assert shape
    return shape


def spec_of(options: Namespace) -> RLJobSpec:
    """Of a whole job; of a `shape`, one whose samples have the mean length of the batch."""
    raw = step.job(options, Path("/model"), Path("/data"))
    if options.shape:
        batch = shapes()[options.shape]
        length = round(batch.tokens / len(batch.lengths))
        raw["data"]["maxPromptTokens"] = PROMPT
        raw["rollout"] = {"sampling": {"maxTokens": length - PROMPT}}
        counts = {"promptsPerStep": len(batch.lengths) // 2, "samplesPerPrompt": 2}
        raw["train"] |= counts | {"tokensPerMicroBatch": options.tokens or batch.tokens_per_micro_batch}
        first = {"num_layers_in_first_pipeline_stage": options.first} if options.first else {}
        raw["trainer"]["transformerConfig"] = first
    return RLJobSpec.model_validate(raw)


@pytest.mark.parametrize("row", MEASURED, ids=lambda row: row.name)
def test_training_takes_as_long_as_it_was_measured_to(row: Measured) -> None:
    assert modelled(row).train == pytest.approx(row.train, rel=0.2)


def test_most_of_it_is_modelled_within_15_percent() -> None:
    off = [abs(modelled(row).train / row.train - 1) for row in MEASURED]
    assert len(off) > 25
    assert sum(error <= 0.15 for error in off) >= 0.9 * len(off)


@pytest.mark.parametrize("row", GENERATED, ids=lambda row: row.name)
def test_generation_takes_about_as_long_as_it_was_measured_to(row: Measured) -> None:
    assert modelled(row).generate == pytest.approx(row.generate, rel=0.25)


def test_two_servers_on_a_gpu_generate_in_the_part_of_ones_time_that_was_measured() -> None:
    """One after the other on a slow host (lease QQ), so that their ratio is compared, and not their seconds."""
    rows = {row["servers_per_gpu"]: row for row in recorded("step-1.5b-h200") if row["lease"] == "QQ"}

    def generated(servers: int) -> float:
        later = [found for number, found in rows[servers]["steps"].items() if number != "1"]
        return statistics.mean(found["generate"] for found in later)

    one, two = (modelled(of_job("step-1.5b-h200", rows[servers])).generate for servers in (1, 2))
    assert two / one == pytest.approx(generated(2) / generated(1), rel=0.15)


def test_engines_alone_gain_as_much_on_a_gpu_as_the_model_of_servers_says() -> None:
    alone = {row["engines"]: row["of_first"] for row in recorded("engines-h200") if row["lease"] == "PP"}
    (row,) = (row for row in recorded("step-1.5b-h200") if row["lease"] == "QQ" and row["servers_per_gpu"] == 1)

    def generate(servers: int) -> float:
        shared = row | {"servers_per_gpu": servers, "cache_gib": 32 / servers}
        return modelled(of_job("step-1.5b-h200", shared)).generate

    for engines, of_first in alone.items():
        assert generate(1) / generate(engines) == pytest.approx(of_first, rel=0.15)


def test_the_time_of_a_product_of_experts_holds_for_leases_that_it_was_not_taken_from() -> None:
    """By the others alone. Without the term the model had 0.39 to 0.51 of what was measured."""
    of_product = [(row.name.partition(":")[0], row.train / modelled(row).train) for row in ONE_BY_ONE]
    assert min(ratio for _, ratio in of_product) < 1 < max(ratio for _, ratio in of_product)
    for lease, own in of_product:
        others = [ratio for other, ratio in of_product if other != lease]
        assert own == pytest.approx(math.sqrt(min(others) * max(others)), rel=0.25)
