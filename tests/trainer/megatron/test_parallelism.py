"""Every layout trains like one rank. All of them run with `-m slow`, and with `-s` print the rows of the table in docs/parallelism.md."""

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from extra import extra_but
from rljob_api.families import FAMILIES
from rljob_trainer.wire.batch import Batch
from trainer.megatron import parity
from trainer.megatron.models import make_batch, make_model

DOCUMENT = Path(__file__).parents[3] / "docs/parallelism.md"

CASES = {case.name: case for case in parity.CASES}
SETTINGS = {case.setting.name: case.setting for case in parity.CASES}
ALWAYS = (
    "PP2 VPP2",
    "PP2 of 3 and 1 layers",
    "TP2 without sequence parallelism",
    "DP2, overlap",
    "CP2 of whole responses",
    "CP2, selective recompute",
    "EP2 with a balanced router",
    "TP2 EP2 ETP1",
    "TP4 with norms of all heads, two ranks for a head of keys",
    "TP2 with latent attention",
    "CP2 with sparse attention, full recompute",
    "PP3 of 1, 2 and 1 layers, accounted",
    "CP2 TP2",
    "EP2 PP2",
    "bfloat16 TP2 PP2",
    "LoRA, TP2 PP2",
    "LoRA of parts, CP2, full recompute",
    "LoRA before a norm, TP2",
    "LoRA, TP2 EP2 ETP1",
    "LoRA next to latent attention, EP2",
    "LoRA of fused matrices, TP2",
    "TP2 PP2 CP2",
)
"""Each way of cutting, each setting's model, and each way to recompute at least once."""


@dataclass
class World:
    """Models and three steps of batches, each made when the first case needs it, and how one rank trains on them."""

    directory: Path
    models: dict[str, Path] = field(default_factory=dict)
    batches: dict[str, list[Batch]] = field(default_factory=dict)
    alone: dict[str, parity.Result] = field(default_factory=dict)
    """By name of the setting."""

    def train(self, case: parity.Case) -> parity.Result:
        kind = case.setting.model
        if kind not in self.models:
            tied = True in FAMILIES[kind].values.get("tie_word_embeddings", (True,))
            self.models[kind] = make_model(self.directory / kind, kind, tied)
            self.batches[kind] = [make_batch(self.models[kind], step) for step in (1, 2, 3)]
        return parity.run(case, self.models, self.batches)

    def on_one_rank(self, setting: parity.Setting) -> parity.Result:
        if setting.name not in self.alone:
            self.alone[setting.name] = self.train(parity.Case(setting.name, 1, setting=setting))
        return self.alone[setting.name]


@pytest.fixture(scope="module")
def world(megatron: None, tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"))


@pytest.mark.slow
@pytest.mark.parametrize("name", extra_but(ALWAYS, CASES))
def test_every_layout_trains_like_one_rank(world: World, name: str) -> None:
    case = CASES[name]
    loss, weights = world.train(case).difference(world.on_one_rank(case.setting))
    print(f"\n| {name} | {case.setting.name} | {case.world} | {loss:.1e} | {weights:.1e} |")
    assert loss <= case.loss and weights <= case.weights


@pytest.mark.slow
def test_what_is_compared_does_learn(world: World) -> None:
    """The settings differ, and three steps move the weights further than any difference that is allowed."""
    losses = [tuple(world.on_one_rank(setting).losses) for setting in SETTINGS.values()]
    assert len(set(losses)) == len(losses)
    still = replace(
        parity.CASES[0],
        name="still",
        world=1,
        sizes={},
        setting=replace(parity.DENSE, train={"optimizer": {"learningRate": 1e-12}}),
    )
    _, moved = world.train(still).difference(world.on_one_rank(parity.DENSE))
    assert moved > 100 * max(case.weights for case in parity.CASES if case.setting == parity.DENSE) / 2


def test_the_table_in_the_documentation_has_every_layout() -> None:
    documented = [
        line.split(" | ")[0].removeprefix("| ") for line in DOCUMENT.read_text().splitlines() if line.startswith("| ")
    ]
    assert [name for name in documented if name in {c.name for c in parity.CASES}] == [c.name for c in parity.CASES]
