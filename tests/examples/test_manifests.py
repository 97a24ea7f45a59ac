"""Nothing is wrong with the jobs under examples/."""

from pathlib import Path

import pytest
import yaml

from rljob_api import names
from rljob_api.rules import validate
from rljob_api.spec import RLJobSpec

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("path", sorted(EXAMPLES.rglob("*.yaml")), ids=lambda path: str(path.relative_to(EXAMPLES)))
def test_an_example_breaks_no_rule(path: Path) -> None:
    for found in yaml.safe_load_all(path.read_text()):
        if found["kind"] == names.KIND:
            assert validate(found["spec"], found["metadata"]["name"]).violations == ()


def test_there_is_a_job_for_each_way_to_train() -> None:
    ways = [
        "arithmetic",
        "calculator",
        "dapo",
        "distillation",
        "dpo",
        "judge",
        "lora",
        "moe",
        "ppo",
        "reasoning-gym",
        "reward-model",
        "sft",
        "vision",
    ]
    recipes = [
        "qwen2.5-1.5b-gsm8k",
        "qwen2.5-7b-gsm8k",
        "qwen3-30b-a3b-dapo",
        "qwen3-vl-30b-a3b",
        "llama-3.3-70b",
        "glm-4.5-air",
        "qwen3-235b-a22b",
        "deepseek-v3",
    ]
    assert sorted(path.parent.name for path in EXAMPLES.glob("*/rljob.yaml")) == sorted([*ways, *recipes, "kueue"])


CHAINS = [
    ("gitops/chain/sft/rljob.yaml", "gitops/chain/grpo/rljob.yaml"),
    ("reward-model/rljob.yaml", "reward-model/rl.yaml"),
]


@pytest.mark.parametrize("chain", CHAINS, ids=lambda chain: chain[0])
def test_a_job_that_builds_on_another_reads_what_that_one_exports(chain: tuple[str, str]) -> None:
    one, other = (yaml.safe_load((EXAMPLES / path).read_text()) for path in chain)
    spec = RLJobSpec.model_validate(one["spec"])
    assert spec.train.steps is not None
    export = names.huggingface_dir(Path(spec.checkpoint.path), spec.train.steps)
    assert f"'{export}'" in str(other["spec"])
    assert other["spec"]["volumes"] == one["spec"]["volumes"]
