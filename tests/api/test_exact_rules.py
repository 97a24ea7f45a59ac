"""Equal bits in servers and ranks: what is refused, and in which words."""

from typing import Any

import pytest

from api.specs import make_spec, raw_spec
from rljob_api.family import DeviceType
from rljob_api.rules import validate
from rljob_api.rules.exact import FAMILIES
from rljob_api.rules.model import model_violations

E = "spec.rollout.exact"


def exact(**sections: Any) -> dict[str, Any]:
    trainer = {"device": "cpu"} | sections.pop("trainer", {})
    return raw_spec(trainer=trainer, rollout={"exact": True} | sections.pop("rollout", {}), **sections)


@pytest.mark.parametrize(
    ("sections", "field", "rule"),
    [
        ({"trainer": {"nodes": 2, "parallelism": {"tensor": 2}}}, E, "spec.trainer.parallelism.tensor: sums over"),
        ({"trainer": {"nodes": 2, "parallelism": {"context": 2}}}, E, "spec.trainer.parallelism.context: sums over"),
        ({"trainer": {"nodes": 2, "parallelism": {"pipeline": 2}}}, E, "spec.trainer.parallelism.pipeline: it has"),
        ({"rollout": {"tensorParallel": 2}}, E, "spec.rollout.tensorParallel: the server's sums"),
        ({"rollout": {"speculation": {"method": "ngram"}}}, E, "spec.rollout.speculation: it has been shown"),
        ({"rollout": {"interrupt": "keep"}, "train": {"staleness": 1}}, E, "spec.rollout.interrupt: tokens would"),
        ({"model": {"path": "/m", "lora": {"rank": 4}}}, E, "spec.model.lora: a server multiplies with merged"),
        ({"rollout": {"vllmArgs": {"block-size": 16}}}, "spec.rollout.vllmArgs.block-size", "nothing shows"),
        (
            {"trainer": {"transformerConfig": {"qk_layernorm": True}}},
            "spec.trainer.transformerConfig.qk_layernorm",
            "nothing shows that servers and ranks compute the same bits",
        ),
    ],
)
def test_what_is_not_equal_is_refused_by_name(sections: dict[str, Any], field: str, rule: str) -> None:
    found = [(v.field, v.rule) for v in validate(exact(**sections), "job").violations]
    assert any(where == field and said.startswith(rule) for where, said in found), found


def on_gpu(**sections: Any) -> dict[str, Any]:
    """A job whose bits were equal."""
    given = {"model": {"path": "/m", "dtype": "bfloat16"}} | sections
    return exact(trainer={"device": "gpu"} | given.pop("trainer", {}), **given)


@pytest.mark.parametrize(
    ("sections", "rule"),
    [
        ({"trainer": {"nodes": 2}}, "spec.trainer.nodes: it has been shown on GPUs with one rank only"),
        ({"trainer": {"processesPerNode": 2}}, "spec.trainer.processesPerNode: it has been shown on GPUs with one"),
        ({"model": {"path": "/m", "dtype": "float32"}}, "spec.model.dtype: it has been shown on GPUs for bfloat16"),
        ({"rollout": {"sampling": {"temperature": 0.7, "maxTokens": 8}}}, "spec.rollout.sampling.temperature: it has"),
        (
            {"rollout": {"vllmArgs": {"enable-prefix-caching": True}}},
            "spec.rollout.vllmArgs.enable-prefix-caching: it has been shown on GPUs without",
        ),
    ],
)
def test_what_gpus_have_not_shown_is_refused_there_by_name(sections: dict[str, Any], rule: str) -> None:
    assert not validate(on_gpu(), "job").violations
    found = [(v.field, v.rule) for v in validate(on_gpu(**sections), "job").violations]
    assert any(where == E and said.startswith(rule) for where, said in found), found
    elsewhere = on_gpu(**sections)
    elsewhere["trainer"]["device"] = "cpu"
    assert not validate(elsewhere, "job").violations


def test_what_chooses_no_kernel_is_allowed() -> None:
    given = exact(trainer={"nodes": 2}, rollout={"vllmArgs": {"max-num-seqs": 8, "enable-prefix-caching": False}})
    assert not validate(given, "job").violations


@pytest.mark.parametrize("device", FAMILIES)
def test_families_and_rotations_that_are_not_shown_are_refused(device: DeviceType) -> None:
    spec = make_spec(trainer={"device": device}, rollout={"exact": True}, model={"path": "/m", "dtype": "bfloat16"})
    scaled = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    refused: list[dict[str, Any]] = [
        {"model_type": "mixtral"},
        {"model_type": "llama", "rope_parameters": scaled | {"original_max_position_embeddings": 8192}},
        {"model_type": "qwen2", "rope_parameters": {"rope_type": "yarn", "factor": 2.0}},
    ]
    for config in refused:
        assert E in [v.field for v in model_violations(spec, config)], config
    for family in FAMILIES["cpu"]:
        broken = E in [v.field for v in model_violations(spec, {"model_type": family})]
        assert broken == (family not in FAMILIES[device])
