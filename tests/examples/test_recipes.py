"""The recipes of real models: they break no rule, fit into the GPUs that their pages name, and their rewards score as said."""

import json
from pathlib import Path

import pytest
import yaml

from kubectl_rljob import gib
from kubectl_rljob.__main__ import main
from rljob_api.rules import validate
from rljob_api.sizing.devices import device
from rljob_api.sizing.memory import GIB, phases
from rljob_api.sizing.network import cards, hand_over, sync
from rljob_api.sizing.shape import Shape
from rljob_api.sizing.speed import speed
from rljob_api.sizing.traffic import links
from rljob_api.sizing.training import Machine
from rljob_api.spec import RLJobSpec
from rljob_api.spec.model import PythonReward, RewardSpec
from rljob_trainer.rewards.manager import RewardManager
from rljob_trainer.rewards.request import Reward, RewardRequest

EXAMPLES = Path(__file__).parents[2] / "examples"
PUBLISHED = {
    "qwen2.5-1.5b-gsm8k": 1_543_714_304,
    "qwen2.5-7b-gsm8k": 7_615_616_512,
    "qwen3-30b-a3b-dapo": 30_532_122_624,
    "qwen3-vl-30b-a3b": 31_070_754_032,
    "llama-3.3-70b": 70_553_706_496,
    "glm-4.5-air": 106_852_251_264,
    "qwen3-235b-a22b": 235_093_634_560,
    "deepseek-v3": 671_000_000_000,
}
"""Parameters, as the model cards' safetensors count them; of GLM-4.5-Air without its layer for multi-token prediction, which has another embedding
and another output layer: with them 110,468,824,832. Of DeepSeek-V3, whose files have that layer as well, what its card says of the main model."""
LARGE = ("llama-3.3-70b", "glm-4.5-air", "qwen3-235b-a22b", "deepseek-v3")
"""Whose pages say what plan's model of time makes of them."""
GPUS = (79.1, 139.8)
"""GiB of an H100 with 80 GB and of an H200 with 141 GB, as their drivers report it."""
MANIFESTS = sorted(
    path for recipe in PUBLISHED for path in (EXAMPLES / recipe).glob("*.yaml") if path.name != "prepare.yaml"
)
every_manifest = pytest.mark.parametrize("path", MANIFESTS, ids=lambda p: f"{p.parent.name}/{p.name}")


def job(path: Path) -> dict:
    return yaml.safe_load(path.read_text())


def job_named(path: Path, name: str) -> dict:
    (spec,) = [
        d["spec"]
        for d in yaml.safe_load_all(path.read_text())
        if d["kind"] == "RLJob" and d["metadata"]["name"] == name
    ]
    return spec


def config(path: Path) -> dict:
    return json.loads((path.parent / "config.json").read_text())


@every_manifest
def test_a_recipe_breaks_no_rule_of_its_model(path: Path) -> None:
    found = job(path)
    assert validate(found["spec"], found["metadata"]["name"], config(path)).violations == ()


@every_manifest
def test_a_recipe_fits_into_the_gpus_of_its_page_with_the_memory_that_the_page_says(path: Path) -> None:
    spec, shape = RLJobSpec.model_validate(job(path)["spec"]), Shape.of(config(path))
    assert shape
    fullest = [max(phases(spec, shape, gpu * GIB), key=lambda p: p.total) for gpu in GPUS]
    assert all(phase.total < gpu * GIB for phase, gpu in zip(fullest, GPUS, strict=True))
    row = " | ".join([*(gib.whole(phase.parts) for phase in fullest), fullest[0].name])
    assert row in (path.parent / "README.md").read_text(), row


@pytest.mark.parametrize(
    "path", [path for path in MANIFESTS if path.parent.name in LARGE], ids=lambda p: f"{p.parent.name}/{p.name}"
)
def test_a_large_recipe_takes_as_long_as_its_page_says(path: Path) -> None:
    spec, shape, h100, network = (
        RLJobSpec.model_validate(job(path)["spec"]),
        Shape.of(config(path)),
        device("h100"),
        cards("8x400g"),
    )
    assert shape and h100.rates
    sent, taken = sync(spec, shape), speed(spec, shape, Machine(h100.rates, h100.bytes, network))
    numbers = [
        f"{sent.sent / 1e9:,.1f}",
        f"{sent.received / 1e9:,.1f}",
        f"{sent.seconds(network):.1f}",
        f"{hand_over(spec, shape).seconds(network):.2f}",
    ]
    seconds = [f"{taken.generate:,.0f}", f"{taken.train:,.0f}", f"{taken.tokens_per_second:,.0f}"]
    page = (path.parent / "README.md").read_text()
    assert f"| `{path.name}` | {' | '.join([*numbers, *seconds])} |" in page
    assert "**Unmeasured**" in page


@every_manifest
def test_plan_says_that_a_recipe_fits_on_its_gpus_and_where_it_does_not(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["plan", "-f", str(path), "--model", str(path.parent), "--offline", "--network", "8x400g"]
    assert main([*given, "--gpu", "h100"]) == 0
    page = capsys.readouterr().out
    assert "\nFits, by the estimate\n" in page
    assert "Loses the step" not in page and "Unusual" not in page, "a recipe follows the advice of its own plan"
    assert main([*given, "--gpu", "12Gi"]) == 1
    assert "Every rule holds, and the job does not fit:" in capsys.readouterr().out


JOBS = sorted(path for path in EXAMPLES.glob("*/*.yaml") if "\nkind: RLJob\n" in path.read_text())


@pytest.mark.parametrize("path", JOBS, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_no_example_goes_against_the_advice_of_its_own_plan(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of those whose model is not named, as far as the spec alone shows it. A step has its model's time, and a quarter more."""
    given = ["plan", "-f", str(path), "--offline", "-o", "json"]
    known = (path.parent / "config.json").exists()
    assert (
        main([*given, *(("--model", str(path.parent), "--gpu", "h100", "--network", "8x400g") if known else ())]) == 0
    )
    for found in json.loads(capsys.readouterr().out):
        assert "advice" not in found
        spec, step = RLJobSpec.model_validate(job_named(path, found["name"])), found["leaving"]["step"]
        assert known is (step is not None) or spec.trainer.device == "cpu"
        graces = [spec.template(role).termination_grace_period_seconds for role in spec.gang_sizes]
        assert all(limit >= 1.25 * (step or 0) for limit in (spec.lifecycle.drain_timeout_seconds, *graces))


@pytest.mark.parametrize("recipe", PUBLISHED)
def test_the_config_of_a_recipe_has_as_many_parameters_as_the_published_model(recipe: str) -> None:
    """`Shape` leaves norms and biases out."""
    shape = Shape.of(json.loads((EXAMPLES / recipe / "config.json").read_text()))
    assert shape and shape.parameters == pytest.approx(PUBLISHED[recipe], rel=1e-3)


def test_experts_of_the_large_recipe_exchange_nothing_between_nodes() -> None:
    path = EXAMPLES / "qwen3-30b-a3b-dapo/rljob.yaml"
    shape = Shape.of(config(path))
    assert shape
    kinds = {link.kind for link in links(RLJobSpec.model_validate(job(path)["spec"]), shape, 0)}
    assert "expert" not in kinds and "data" in kinds


@pytest.mark.parametrize(
    ("response", "reward"),
    [
        ("3 + 4 = 7\n#### 7", Reward(1.0, {"formatted": 1.0})),
        ("#### $1,234.00", Reward(0.1, {"formatted": 1.0})),
        ("the answer is 7", Reward(0.0, {"formatted": 0.0})),
    ],
)
async def test_the_reward_of_gsm8k_counts_the_right_number_and_reports_the_format(
    response: str, reward: Reward
) -> None:
    file = PythonReward(path=str(EXAMPLES / "qwen2.5-1.5b-gsm8k/reward.py"))
    manager = RewardManager([RewardSpec(python=file)])
    try:
        await manager.start()
        assert await manager.score(RewardRequest("3+4?", response, "7", "openai/gsm8k")) == reward
    finally:
        await manager.stop()
