"""What is refused with images, and which models read them."""

from typing import Any

import pytest

from api.model_configs import DENSE, VISION, P, check
from api.specs import make_spec
from rljob_api.rules.model import model_violations

IMAGES = {"data": {"train": ["/data/a.parquet"], "imageKey": "images"}}
REWARD = {"rewards": [{"model": {"path": "/data/judge"}}]}
SERVED: dict[str, Any] = {"url": "http://judge:8000"}
JUDGED = SERVED | {"judge": {"prompt": "{response}", "score": "([01])"}}
POOL = {"pools": [{"name": "teacher", "model": "/data/teacher"}]}
TEACHER = POOL | {"algorithm": {"advantage": "grpo", "distillation": {"pool": "teacher", "coefficient": 1.0}}}
TEXTS = [REWARD, {"rewards": [{"vllm": SERVED}]}, {"rewards": [{"vllm": JUDGED}]}, TEACHER]

SEEN = [
    ({"trainer": {"nodes": 2, "parallelism": {"pipeline": 2}}}, f"{P}.pipeline", "pipeline parallelism of models with a vision"),
    ({"trainer": {"nodes": 2, "parallelism": {"context": 2}}}, f"{P}.context", "context parallelism of models with a vision"),
    ({"trainer": {"nodes": 2, "overlap": {"gradReduce": True}}}, "spec.trainer.overlap.gradReduce", "a micro-batch without an image"),
    ({"algorithm": {"advantage": "gae"}, "critic": {}}, "spec.critic", "a critic of the type qwen2_5_vl is not proven"),
    ({"model": {"path": "/data/model", "lora": {}}}, "spec.model.lora", "adapters are refused in models of the type qwen2_5_vl: not proven with"),
    ({"task": "rewardModel"}, "spec.task", "reward models of the type qwen2_5_vl are not proven"),
    (IMAGES | REWARD, "spec.rewards[0].model", "reward models on the trainer's ranks read no images"),
    (IMAGES | {"rewards": [{"vllm": SERVED}]}, "spec.rewards[0].vllm", "reward models on servers are sent token ids"),
    (IMAGES | TEACHER, "spec.algorithm.distillation.pool", "a teacher on servers is sent token ids"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "field", "rule"), SEEN)
def test_what_is_not_proven_with_images_is_refused_by_name(changes: dict[str, Any], field: str, rule: str) -> None:
    (found,) = model_violations(make_spec(**changes), VISION)
    assert found.field == field and found.rule.startswith(rule)


@pytest.mark.parametrize("changes", [*TEXTS, IMAGES | {"rewards": [{"vllm": JUDGED}]}])
def test_models_that_read_texts_are_taken_where_there_are_no_images_or_texts_alone_count(
    changes: dict[str, Any],
) -> None:
    assert list(model_violations(make_spec(**changes), VISION)) == []


def test_images_are_read_and_parts_are_frozen_where_there_is_a_tower() -> None:
    data, frozen = {"train": ["/data/a.parquet"], "imageKey": "images"}, {"path": "/data/model", "freeze": ["vision"]}
    spec = make_spec(data=data, model=frozen, task="sft")
    assert list(model_violations(spec, VISION)) == []
    refused = [(v.field, v.fix) for v in model_violations(spec, DENSE)]
    fix = "remove it, or use one of qwen2_5_vl, qwen3_vl, qwen3_vl_moe, qwen3_5, qwen3_5_moe"
    assert refused == [("spec.data.imageKey", fix), ("spec.model.freeze", fix)]
    assert [v.fix for v in model_violations(make_spec(data=data), DENSE)] == [
        fix.removesuffix(", qwen3_5, qwen3_5_moe")
    ], "what is generated on the job's device"
    on_gpus = make_spec(data=data, trainer={"device": "gpu"})
    assert [v.fix for v in model_violations(on_gpus, DENSE)] == [fix]
    whole = make_spec(
        task="sft", model=frozen | {"freeze": ["projector", "vision"]}, trainer={"overlap": {"gradReduce": True}}
    )
    assert list(model_violations(whole, VISION)) == [], "nothing of the tower has a gradient"


def test_a_language_model_in_a_section_of_its_own_keeps_the_rules() -> None:
    assert set(check(VISION, tensor=3)) > set(check(DENSE, tensor=3)) != set()
    odd = [rule for field, rule in check(VISION, tensor=2) if field == f"{P}.tensor"]
    assert odd == ["vocab_size = 101 of a model with a vision tower is not divisible by it"]
    flat = {key: value for key, value in VISION.items() if key != "text_config"} | DENSE | {"model_type": "qwen2_5_vl"}
    assert check(flat | {"rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}}) == []


@pytest.mark.parametrize(
    ("vision", "said"),
    [
        ({"in_channels": 1}, "vision_config.in_channels = 1, which must be 3: pictures have three colours"),
        ({"in_chans": 4}, "vision_config.in_chans = 4, which must be 3: pictures have three colours"),
        (
            {"out_hidden_size": 32},
            "vision_config.out_hidden_size = 32, which must be 64, the hidden_size of the language model",
        ),
        (
            {"deepstack_visual_indexes": [0, 2]},
            "deepstack_visual_indexes = [0, 2], which must name layers of the tower, from 0 to 1",
        ),
        ({"deepstack_visual_indexes": [1, 1]}, "deepstack_visual_indexes = [1, 1], which must name each layer once"),
        (
            {"depth": 99, "deepstack_visual_indexes": [*range(13)]},
            "which must name at most num_hidden_layers = 12 layers",
        ),
    ],
)
def test_a_tower_that_does_not_fit_its_language_model_is_refused(vision: dict[str, Any], said: str) -> None:
    config = {**VISION, "text_config": VISION["text_config"] | {"hidden_size": 64}}
    ((_, rule),) = check(config | {"vision_config": {"depth": 2} | vision})
    assert said in rule
    assert check(config | {"vision_config": {"depth": 2, "in_channels": 3, "out_hidden_size": 64}}) == []
