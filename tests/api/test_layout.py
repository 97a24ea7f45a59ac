from typing import Any

import pytest

from api.specs import make_spec, raw_spec
from rljob_api import names
from rljob_api.rules import validate
from rljob_api.sizing.layout import Amounts, Layout, required_servers, servers_per_pod, wanted_servers

P, T = "spec.trainer.parallelism", "spec.trainer.transformerConfig"


def parallel(nodes: int = 1, device: str = "cpu", **sizes: Any) -> dict[str, Any]:
    return {"trainer": {"nodes": nodes, "device": device, "parallelism": sizes}}


def config(device: str = "cpu", **keys: Any) -> dict[str, Any]:
    return {"trainer": {"device": device, "transformerConfig": keys}}


def with_parallelism(changes: dict[str, Any], nodes: int, **sizes: Any) -> dict[str, Any]:
    return {"trainer": changes["trainer"] | {"nodes": nodes, "parallelism": sizes}}


def recompute(**settings: Any) -> dict[str, Any]:
    return {"trainer": {"device": "cpu", "recompute": settings}}


@pytest.mark.parametrize(
    "key", ["moe_expert_capacity_factor", "moe_router_topk_scaling_factor", "no_rope_freq", "softmax_type", "qk_clip"]
)
def test_a_key_that_makes_the_trainers_model_another_than_the_rollouts_is_refused(key: str) -> None:
    assert [v.field for v in validate(raw_spec(**config("gpu", **{key: 1})), "demo").violations] == [f"{T}.{key}"]


def test_data_parallel_size_is_what_tensor_pipeline_and_context_leave() -> None:
    sizes = {"tensor": 2, "pipeline": 2, "context": 2}
    layout = Layout.of(make_spec(trainer={"nodes": 4, "processesPerNode": 4, "parallelism": sizes}), names.ROLE_TRAINER)
    assert (layout.world, layout.data, str(layout)) == (16, 2, "tp2-pp2-dp2-cp2")


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({}, "tp1-pp2-dp1"),
        ({"num_layers_in_first_pipeline_stage": 3}, "tp1-pp2-first3-dp1"),
        ({"num_layers_in_first_pipeline_stage": 3, "num_layers_in_last_pipeline_stage": 1}, "tp1-pp2-first3+last1-dp1"),
        (
            {"account_for_embedding_in_pipeline_split": True, "account_for_loss_in_pipeline_split": True},
            "tp1-pp2-embedding+loss-dp1",
        ),
        ({"pipeline_model_parallel_layout": "Ettt|tL"}, "tp1-pp2-written540811a7-dp1"),
    ],
)
def test_layouts_with_other_layers_on_a_stage_have_other_names(given: dict[str, Any], name: str) -> None:
    """By which a checkpoint knows that its optimizer does not fit."""
    trainer = {"nodes": 2, "parallelism": {"pipeline": 2}, "transformerConfig": given}
    assert str(Layout.of(make_spec(trainer=trainer), names.ROLE_TRAINER)) == name


def test_experts_are_cut_over_ranks_that_are_data_parallel_for_the_rest() -> None:
    sizes = {"tensor": 2, "expert": 4, "expertTensor": 1}
    layout = Layout.of(make_spec(trainer={"nodes": 8, "parallelism": sizes}), names.ROLE_TRAINER)
    assert (layout.data, layout.expert_model, str(layout)) == (4, 4, "tp2-pp1-dp4-ep4-etp1")


def test_sequences_are_filled_up_for_context_and_micro_batches_for_tensor_parallel_ranks() -> None:
    found = {
        sizes: (layout.sequence_alignment, layout.alignment)
        for sizes in ((1, 1), (2, 1), (1, 2), (2, 4))
        if (layout := Layout(8, tensor=sizes[0], context=sizes[1]))
    }
    assert found == {(1, 1): (1, 1), (2, 1): (1, 2), (1, 2): (4, 4), (2, 4): (8, 16)}


def test_interleaved_stages_take_micro_batches_in_groups_of_the_pipelines_size() -> None:
    assert Layout(4, pipeline=4).micro_batch_multiple == 1
    assert Layout(4, pipeline=4, virtual_pipeline=2).micro_batch_multiple == 4


def test_colocated_servers_are_counted_by_the_ranks_and_are_all_required() -> None:
    spec = make_spec(
        trainer={"nodes": 3, "processesPerNode": 8}, rollout={"placement": "colocated", "tensorParallel": 2}
    )
    assert (servers_per_pod(spec), required_servers(spec), wanted_servers(spec)) == (4, 12, 12)
    assert (spec.rollout.pods, spec.rollout.required) == (0, 0)
    sharing = make_spec(
        trainer={"nodes": 3, "processesPerNode": 8}, rollout={"placement": "colocated", "serversPerGpu": 4}
    )
    assert (servers_per_pod(sharing), required_servers(sharing), wanted_servers(sharing)) == (32, 96, 96)
    separate = make_spec(rollout={"replicas": 4, "minReplicas": 2})
    assert (servers_per_pod(separate), required_servers(separate), wanted_servers(separate)) == (0, 2, 4)


def test_samples_are_counted_globally_per_step() -> None:
    amounts = Amounts.of(
        make_spec(
            train={"promptsPerStep": 16, "samplesPerPrompt": 8, "miniBatches": 4},
            data={"train": ["/data/train.parquet"], "maxPromptTokens": 20},
            rollout={"sampling": {"maxTokens": 30}},
        )
    )
    assert amounts == Amounts(
        longest=50,
        groups_per_step=16,
        group=8,
        samples_per_step=128,
        groups_per_mini_batch=4,
        samples_per_mini_batch=32,
        updates=4,
        optimizer_steps=40,
    )


RULES = [
    (parallel(3, tensor=2), P, "= 3 is not divisible by tensor x pipeline x context = 2"),
    (parallel(6, context=4), P, "= 6 is not divisible by tensor x pipeline x context = 4"),
    (parallel(2, expert=4), P, "= 2 ranks is not divisible by expertTensor x expert x pipeline = 4"),
    (parallel(6, tensor=2, expertTensor=4), P, "is not divisible by expertTensor x expert x pipeline = 4"),
    (parallel(2, "gpu", tensor=2), f"{P}.tensor", "must share a node, which has 1 rank"),
    (parallel(virtualPipeline=2), f"{P}.virtualPipeline", "there is one stage"),
    (parallel(4, tensor=2, expert=2, expertTensor=1, sequence=False), f"{P}.sequence", "sequence-parallel ranks"),
    (parallel(4, tensor=2, expert=2), f"{P}.expertTensor", "on CPU, gloo cannot"),
    (parallel(2, "gpu", context=2) | {"model": {"path": "/model", "dtype": "float32"}}, f"{P}.context", "computes in bfloat16 only"),
    (parallel(4, "gpu", expertTensor=4), f"{P}.expertTensor", "must share a node, which has 1 rank"),
    ({"trainer": {"overlap": {"paramGather": True}}}, "spec.trainer.overlap.paramGather", "into the buckets from which gradients are reduced"),
    (
        {"trainer": {"overlap": {"gradReduce": True, "paramGather": True}}},
        "spec.trainer.overlap.paramGather",
        "miniBatches x epochsPerStep = 1 leaves one update in a step",
    ),
    (recompute(modules=["mlp"]), "spec.trainer.recompute.modules", "granularity none does not read it"),
    (recompute(granularity="full", modules=["mlp"]), "spec.trainer.recompute.modules", "full does not read it"),
    (recompute(granularity="selective", method="block"), "spec.trainer.recompute.method", "selective does not read it"),
    (recompute(layers=2), "spec.trainer.recompute.layers", "granularity none does not read it"),
    (recompute(granularity="selective", modules=[]), "spec.trainer.recompute.modules", "recomputes nothing"),
    (recompute(granularity="selective", modules=["mla_up_proj"]), "spec.trainer.recompute.modules", "no supported model"),
    ({"train": {"miniBatches": 3}}, "spec.train.miniBatches", "spec.train.promptsPerStep = 4 is not divisible by it"),
    ({"train": {"tokensPerMicroBatch": 23}}, "spec.train.tokensPerMicroBatch", "maxPromptTokens + maxTokens = 24, rounded up"),
    (
        parallel(10, context=5) | {"train": {"tokensPerMicroBatch": 29}},
        "spec.train.tokensPerMicroBatch",
        "maxPromptTokens + maxTokens = 24, rounded up for tensor and context parallelism = 30",
    ),
    (config(context_parallel_size=2), f"{T}.context_parallel_size", f"set by {P}.context"),
    (config(recompute_granularity="full"), f"{T}.recompute_granularity", "set by spec.trainer.recompute.granularity"),
    (config(virtual_pipeline_model_parallel_size=2), f"{T}.virtual_pipeline_model_parallel_size", "virtualPipeline"),
    (config(moe_grouped_gemm=False), f"{T}.moe_grouped_gemm", "checkpoints hold grouped experts"),
    (config(moe_input_jitter_eps=0.1), f"{T}.moe_input_jitter_eps", "must not depend on chance"),
    (config(moe_token_dispatcher_type="allgather"), f"{T}.moe_token_dispatcher_type", "packed sequences differ in length"),
    (config(moe_token_dispatcher_type="flex"), f"{T}.moe_token_dispatcher_type", "its kernels need GPUs"),
    (config("gpu", moe_enable_deepep=True), f"{T}.moe_enable_deepep", "a back end of the flex dispatcher"),
    (config(moe_router_load_balancing_type="sinkhorn"), f"{T}.moe_router_load_balancing_type", "otherwise than the rollouts"),
    (config(moe_router_load_balancing_type="aux_loss"), f"{T}.moe_router_load_balancing_type", "has no weight"),
    (config(moe_aux_loss_coeff=0.1), f"{T}.moe_aux_loss_coeff", "there is no such loss"),
    (recompute(granularity="selective", modules=["moe_act"]), "spec.trainer.recompute.modules", "and a C++ compiler"),
    (config(moe_permute_fusion=True), f"{T}.moe_permute_fusion", "device cpu has none of what it needs"),
    (config(moe_router_fusion=True), f"{T}.moe_router_fusion", "device cpu has none of what it needs"),
    (config(apply_rope_fusion=True), f"{T}.apply_rope_fusion", "device cpu has none of what it needs"),
    (config(cpu_offloading=True), f"{T}.cpu_offloading", "device cpu has none of what it needs"),
    (
        config("gpu", fp8="hybrid") | {"model": {"path": "/data/model", "lora": {}}},
        f"{T}.fp8",
        "is not proven with spec.model.lora",
    ),
    (
        config(moe_router_bias_update_rate=1e-3) | {"model": {"path": "/data/model", "lora": {}}},
        f"{T}.moe_router_bias_update_rate",
        "changes biases of routers in a model that spec.model.lora keeps as it is",
    ),
    (config(cp_comm_type="a2a"), f"{T}.cp_comm_type", "torch layers gather keys and values"),
    (
        with_parallelism(config("gpu", cpu_offloading=True), 2, pipeline=2),
        f"{T}.cpu_offloading",
        "works in one stage only, and pipeline = 2",
    ),
    (
        {"trainer": config("gpu", cpu_offloading=True)["trainer"] | recompute(granularity="full")["trainer"] | {"device": "gpu"}},
        f"{T}.cpu_offloading",
        "does not work with spec.trainer.recompute (full)",
    ),
    (config("gpu", fine_grained_activation_offloading=True), f"{T}.fine_grained_activation_offloading", "offload_modules"),
    (
        config("gpu", cpu_offloading=True, fine_grained_activation_offloading=True, offload_modules=["core_attn"]),
        f"{T}.cpu_offloading",
        "does the same in another way",
    ),
    (config(distribute_saved_activations=True), f"{T}.distribute_saved_activations", "which is not on"),
    (
        with_parallelism(config(distribute_saved_activations=True), 2, tensor=2),
        f"{T}.distribute_saved_activations",
        "sequence parallelism has cut them already",
    ),
    (config(num_layers_in_first_pipeline_stage=3), f"{T}.num_layers_in_first_pipeline_stage", "there is one stage"),
    (
        with_parallelism(
            config(num_layers_in_first_pipeline_stage=3, account_for_loss_in_pipeline_split=True), 2, pipeline=2
        ),
        f"{T}.num_layers_in_first_pipeline_stage",
        "contradicts account_for_loss_in_pipeline_split",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "field", "rule"), RULES)
def test_a_broken_rule_is_found_at_its_field(changes: dict[str, Any], field: str, rule: str) -> None:
    found = validate(raw_spec(**changes), "demo").violations
    assert [v for v in found if v.field == field and rule in v.rule], found


def test_a_layout_that_uses_every_size_breaks_no_rule() -> None:
    sizes = {"tensor": 2, "pipeline": 2, "virtualPipeline": 2, "context": 2, "expert": 2, "expertTensor": 1}
    trainer = {
        "nodes": 16,
        "device": "cpu",
        "parallelism": sizes,
        "overlap": {"gradReduce": True, "paramGather": True},
        "recompute": {"granularity": "full", "method": "block", "layers": 2},
    }
    assert validate(raw_spec(trainer=trainer, train={"miniBatches": 2}), "demo").violations == ()


def test_what_fails_on_cpu_only_is_allowed_on_gpus() -> None:
    sizes = {"tensor": 2, "expert": 2}
    keys = {"moe_token_dispatcher_type": "flex", "moe_permute_fusion": True, "apply_rope_fusion": True}
    trainer = {"device": "gpu", "processesPerNode": 4, "parallelism": sizes, "transformerConfig": keys}
    assert validate(raw_spec(trainer=trainer), "demo").violations == ()


def test_every_use_of_a_layout_says_whose_it_is() -> None:
    spec = make_spec(trainer={"nodes": 4, "parallelism": {"tensor": 2}})
    assert {str(Layout.of(spec, role)) for role in (*names.MODEL_ROLES, "reward0")} == {"tp2-pp1-dp2"}
    with pytest.raises(ValueError, match="unknown role 'rollout': must be trainer, critic, reference, or reward and"):
        Layout.of(spec, names.ROLE_ROLLOUT)
