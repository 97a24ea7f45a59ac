"""Models on gangs of their own: how many pods they add, which layout they have, and what may be said about them."""

from typing import Any

import pytest

from api.specs import make_spec, raw_spec
from rljob_api import names
from rljob_api.rules import validate
from rljob_api.sizing.layout import Layout, required_pods, spec_of_gang
from rljob_api.spec import RLJobSpec
from rljob_placement.gang import Gang

KL = {"kl": {"coefficient": 0.01}}


def with_reference(**gang: Any) -> dict[str, Any]:
    return raw_spec(reference=gang, algorithm=KL)


def with_rewards(*gangs: dict[str, Any]) -> dict[str, Any]:
    return raw_spec(rewards=[{"rule": "number"}, *({"model": {"path": "/data/reward"} | gang} for gang in gangs)])


def with_critic(**gang: Any) -> dict[str, Any]:
    return raw_spec(critic=gang, algorithm={"advantage": "gae"})


def broken(spec: dict[str, Any], model: dict[str, Any] | None = None) -> list[str]:
    return [v.field for v in validate(spec, "demo", model).violations]


def test_a_model_with_processes_has_a_gang_and_one_without_is_on_the_trainer_s_ranks() -> None:
    layout = {"tensor": 2, "context": 2}
    gang = {"nodes": 3, "processesPerNode": 4, "parallelism": layout, "tokensPerMicroBatch": 99, "shmSize": "2Gi"}
    spec = make_spec(reference=gang, algorithm=KL, trainer={"nodes": 2}, rewards=[{"rule": "number"}])
    assert spec.gang_sizes == {"trainer": 2, "reference": 3}
    assert spec.pod_counts == {"trainer": 2, "reference": 3, "rollout": 1} == required_pods(spec)
    assert str(Layout.of(spec, "reference")) == "tp2-pp1-dp3-cp2"
    assert str(Layout.of(spec, "trainer")) == str(Layout.of(spec, "reward0")) == "tp1-pp1-dp2"
    own = spec_of_gang(spec, "reference")
    assert (own.train.tokens_per_micro_batch, own.trainer.shm_size, own.trainer.device) == (99, "2Gi", "cpu")
    assert spec_of_gang(spec, "trainer") is spec
    assert spec.processes_of("reference") == 4


def test_a_reference_that_is_not_held_has_no_gang() -> None:
    spec = make_spec(reference={"processesPerNode": 1})
    assert spec.gangs == {} and spec.pod_counts == {"trainer": 1, "rollout": 1}
    assert broken(raw_spec(reference={"processesPerNode": 1})) == ["spec.reference"]


JUDGES = [{"vllm": {"pool": pool}} for pool in ("judge", "both")]


def all_models(teacher: str, only: bool) -> RLJobSpec:
    """A job with gangs of all kinds, and pools that a reward asks, or the teacher is in, or both."""
    return make_spec(
        critic={"processesPerNode": 1},
        reference={"processesPerNode": 1, "nodes": 2},
        pools=[{"name": name, "model": f"/data/{name}"} for name in sorted({"judge", "both", teacher})],
        rewards=[*JUDGES, {"model": {"path": "/data/reward", "processesPerNode": 1}}],
        algorithm={"advantage": "gae", "kl": {"coefficient": 0.1}, "distillation": {"pool": teacher}},
        data={"validation": ["/data/heldout.parquet"]},
        evaluation={"only": only},
    )


@pytest.mark.parametrize(
    ("teacher", "idle"),
    [("teacher", ["critic", "reference", "reward2", "teacher"]), ("both", ["critic", "reference", "reward2"])],
)
def test_an_evaluation_starts_what_answers_and_scores_alone(teacher: str, idle: list[str]) -> None:
    trains, evaluates = (all_models(teacher, only) for only in (False, True))
    assert trains.idle == [] and evaluates.idle == idle
    assert evaluates.pod_counts == {role: n for role, n in trains.pod_counts.items() if role not in idle}
    assert evaluates.pods.keys() == trains.pods.keys() - idle
    assert required_pods(evaluates).keys() == required_pods(trains).keys() - idle
    gang = Gang.of(evaluates)
    assert {*gang.gangs, *(pool.name for pool in gang.pools)} == {"judge", "both"}


def test_a_reference_that_measures_held_out_pairs_is_started() -> None:
    held_out = {"validation": ["/data/heldout.jsonl"]}
    spec = make_spec(task="dpo", reference={"processesPerNode": 1}, data=held_out, evaluation={"only": True})
    assert spec.gangs.keys() == {"reference"} and spec.idle == []


def test_the_role_of_a_reward_model_is_its_place_in_the_list() -> None:
    spec = make_spec(rewards=with_rewards({}, {"processesPerNode": 1})["rewards"])
    assert spec.gangs.keys() == {"reward2"}
    assert spec.field_of("reward2") == "spec.rewards[2].model"
    assert names.pod("demo", "reward2", 0) == "demo-reward2-0"


def test_what_is_right_for_a_trainer_is_right_for_a_gang() -> None:
    keys = {"attention_backend": "fused"}
    gang = {"nodes": 2, "processesPerNode": 2, "parallelism": {"tensor": 2, "pipeline": 2}, "transformerConfig": keys}
    assert broken(with_reference(**gang)) == [] == broken(with_rewards(gang))


@pytest.mark.parametrize(
    ("gang", "field"),
    [
        ({"processesPerNode": 3, "parallelism": {"tensor": 2}}, "parallelism"),
        ({"processesPerNode": 1, "parallelism": {"virtualPipeline": 2}}, "parallelism.virtualPipeline"),
        ({"processesPerNode": 1, "tokensPerMicroBatch": 16}, "tokensPerMicroBatch"),
        ({"processesPerNode": 1, "transformerConfig": {"hidden_siez": 1}}, "transformerConfig.hidden_siez"),
        ({"processesPerNode": 1, "transformerConfig": {"fp8": "e4m3"}}, "transformerConfig.fp8"),
        ({"processesPerNode": 1, "template": {"env": [{"name": "RANK", "value": "0"}]}}, "template.env[0].name"),
        ({"processesPerNode": 1, "template": {"labels": {"rljob.dev/role": "x"}}}, "template.labels.rljob.dev/role"),
        ({"nodes": 2}, "nodes"),
        ({"parallelism": {"tensor": 2}}, "parallelism"),
        ({"tokensPerMicroBatch": 4096}, "tokensPerMicroBatch"),
        ({"transformerConfig": {"fp8": "e4m3"}}, "transformerConfig"),
        ({"shmSize": "2Gi"}, "shmSize"),
        ({"template": {"image": "other:1"}}, "template"),
    ],
)
def test_what_a_gang_cannot_be_is_refused_at_its_own_field(gang: dict[str, Any], field: str) -> None:
    assert broken(with_reference(**gang)) == [f"spec.reference.{field}"]
    assert broken(with_rewards({}, gang)) == [f"spec.rewards[2].model.{field}"]
    assert broken(with_critic(**gang)) == [f"spec.critic.{field}"]


@pytest.mark.parametrize(
    ("critic", "field"),
    [
        ({"recompute": {"granularity": "full"}}, "recompute"),
        ({"processesPerNode": 1, "recompute": {"method": "block"}}, "recompute.method"),
        ({"processesPerNode": 1, "offload": {"optimizer": True}}, "offload"),
        ({"offload": {"optimizer": True, "update": True}}, "offload.optimizer"),
        (
            {"processesPerNode": 1, "recompute": {"granularity": "selective", "modules": ["layernorm"]}},
            "recompute.modules",
        ),
    ],
)
def test_recomputation_and_offloading_of_a_critic_depend_on_where_it_is(critic: dict[str, Any], field: str) -> None:
    assert broken(with_critic(**critic)) == [f"spec.critic.{field}"]
    spec = make_spec(**with_critic(processesPerNode=1, recompute={"granularity": "full"}))
    assert spec_of_gang(spec, "critic").trainer.recompute.granularity == "full"
    assert spec_of_gang(spec, "trainer").trainer.recompute.granularity == "none"


def test_a_refusal_names_no_field_of_the_trainer() -> None:
    spec = with_reference(processesPerNode=3, parallelism={"tensor": 2})
    (violation,) = validate(spec, "demo").violations
    assert str(violation) == (
        "spec.reference.parallelism = tensor 2 x pipeline 1 x context 1: nodes x processesPerNode = 3 is not divisible by "
        "tensor x pipeline x context = 2; make spec.reference.nodes x spec.reference.processesPerNode a multiple of it, or lower "
        "one of the sizes"
    )


@pytest.mark.parametrize(
    ("key", "owner"),
    [
        ("pipeline_dtype", "spec.model.dtype"),
        ("context_parallel_size", "spec.critic.parallelism.context"),
        ("recompute_method", "spec.critic.recompute.method"),
        ("use_cpu_initialization", "spec.trainer.device"),
    ],
)
def test_a_key_that_is_set_elsewhere_names_the_field_that_the_gang_has(key: str, owner: str) -> None:
    (violation,) = validate(with_critic(processesPerNode=1, transformerConfig={key: 1}), "demo").violations
    assert violation.field == f"spec.critic.transformerConfig.{key}"
    assert violation.rule == f"this key is set by {owner}"


def test_adapters_are_the_policy_s_alone() -> None:
    spec = make_spec(
        model={"lora": {}},
        **{k: v for k, v in with_reference(processesPerNode=1).items() if k in ("reference", "algorithm")},
    )
    assert spec.model.lora and spec_of_gang(spec, "reference").model.lora is None


def test_a_gang_s_tensor_parallel_ranks_share_a_pod_and_its_devices_are_counted_for_the_author() -> None:
    gang = {"nodes": 2, "processesPerNode": 1, "parallelism": {"tensor": 2}}
    spec = with_reference(**gang) | {"trainer": {"device": "gpu"}}
    assert broken(spec) == ["spec.reference.parallelism.tensor"]
    limits = {"template": {"resources": {"limits": {"nvidia.com/gpu": "1"}}}}
    spec = with_reference(processesPerNode=1, **limits) | {"trainer": {"device": "gpu"}}
    (violation,) = validate(spec, "demo").violations
    assert violation.rule == "is set by spec.reference.processesPerNode"


def test_a_reference_s_gang_is_held_to_the_model_as_the_trainer_is() -> None:
    model = {"model_type": "qwen2", "num_attention_heads": 6, "num_key_value_heads": 2, "intermediate_size": 64}
    spec = with_reference(processesPerNode=4, parallelism={"tensor": 4})
    assert broken(spec, model | {"num_hidden_layers": 2}) == ["spec.reference.parallelism.tensor"]
    spec = with_reference(nodes=3, processesPerNode=1, parallelism={"pipeline": 3})
    assert broken(spec, model | {"num_hidden_layers": 2}) == ["spec.reference.parallelism.pipeline"]


def test_a_pool_has_no_name_of_a_gang() -> None:
    pool = {"name": "reward3", "model": "/data/judge"}
    spec = raw_spec(pools=[pool], rewards=[{"vllm": {"pool": "reward3"}}])
    assert broken(spec) == ["spec.pools[0].name"]
