"""Every layout trains like one rank. Run with `-s` for the table of docs/parallelism.md."""

from dataclasses import replace
from pathlib import Path

import pytest

from rljob_api.families import FAMILIES
from rljob_trainer.wire.batch import Batch
from trainer.megatron import parity
from trainer.megatron.models import make_batch, make_model

DOCUMENT = Path(__file__).parents[3] / "docs/parallelism.md"

World = tuple[dict[str, Path], dict[str, list[Batch]], dict[str, parity.Result]]


@pytest.fixture(scope="module")
def world(megatron: None, tmp_path_factory: pytest.TempPathFactory) -> World:
    """Models, three steps of batches, and how one rank trains on them in every setting."""
    kinds = {case.setting.model for case in parity.CASES}
    models = {kind: make_model(tmp_path_factory.mktemp(kind), kind, not FAMILIES[kind].latent) for kind in kinds}
    batches = {kind: [make_batch(path, step) for step in (1, 2, 3)] for kind, path in models.items()}
    settings = {case.setting.name: case.setting for case in parity.CASES}
    alone = [parity.Case(name, 1, setting=setting) for name, setting in settings.items()]
    return models, batches, parity.run(alone, models, batches)


@pytest.fixture(scope="module")
def rows() -> dict[str, tuple[float, float]]:
    return {}


@pytest.mark.slow
@pytest.mark.parametrize("ranks", sorted({case.world for case in parity.CASES}))
def test_every_layout_trains_like_one_rank(world: World, rows: dict[str, tuple[float, float]], ranks: int) -> None:
    models, batches, alone = world
    cases = [case for case in parity.CASES if case.world == ranks]
    for name, result in parity.run(cases, models, batches).items():
        case = next(c for c in cases if c.name == name)
        rows[name] = result.difference(alone[case.setting.name])
    if ranks == max(case.world for case in parity.CASES):
        print("\n" + parity.table(rows))
    far = {c.name: rows[c.name] for c in cases if rows[c.name][0] > c.loss or rows[c.name][1] > c.weights}
    assert far == {}


@pytest.mark.slow
def test_what_is_compared_does_learn(world: World) -> None:
    """The settings differ, and three steps move the weights further than any difference that is allowed."""
    models, batches, alone = world
    losses = [tuple(result.losses) for result in alone.values()]
    assert len(set(losses)) == len(losses)
    still = replace(
        parity.CASES[0],
        name="still",
        world=1,
        sizes={},
        setting=replace(parity.DENSE, train={"optimizer": {"learningRate": 1e-12}}),
    )
    _, moved = parity.run([still], models, batches)["still"].difference(alone[parity.DENSE.name])
    assert moved > 100 * max(case.weights for case in parity.CASES if case.setting == parity.DENSE) / 2


def test_the_table_in_the_documentation_has_every_layout() -> None:
    documented = [
        line.split(" | ")[0].removeprefix("| ") for line in DOCUMENT.read_text().splitlines() if line.startswith("| ")
    ]
    assert [name for name in documented if name in {c.name for c in parity.CASES}] == [c.name for c in parity.CASES]
