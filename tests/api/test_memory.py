"""What a model takes of the memory of GPUs and hosts, in each phase of a step."""

from typing import Any

import pytest

from api.sized import GIB, MOE, QWEN_1_5B, gpu_spec
from api.specs import make_spec
from rljob_api.sizing import guessing
from rljob_api.sizing.host import FURTHER_SERVER, PROCESSES, HostMemory, host_memory
from rljob_api.sizing.layout import spec_of_gang
from rljob_api.sizing.memory import (
    SERVER_OVERHEAD,
    TRAINER_OVERHEAD,
    PhaseMemory,
    PhaseParts,
    cache_memory,
    in_flight,
    phases,
    rollout_memory,
    trainer_memory,
)
from rljob_api.sizing.replica import COLOCATED_BUCKET
from rljob_api.sizing.shape import NOMINAL, Shape
from rljob_api.sizing.stage import UPDATING, stages
from rljob_api.sizing.volume import volume_space
from rljob_api.spec import RLJobSpec
from rljob_api.spec.model import LoraSpec


def test_a_shape_is_read_from_config_json() -> None:
    config = {
        "num_hidden_layers": 36,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 12288,
        "vocab_size": 151936,
    }
    assert Shape.of(config) == NOMINAL
    assert NOMINAL.parameters == pytest.approx(8.19e9, rel=0.01), "Qwen3-8B"
    assert Shape.of({"hidden_size": 4096}) is None
    experts = config | {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768}
    moe = Shape.of(experts)
    assert moe and moe.expert == 3 * 4096 * 768 * 128


@pytest.mark.parametrize(("tokens", "measured"), [(16384, 67.2), (32768, 107.9)])
def test_memory_of_one_gpu_is_near_what_was_measured(tokens: int, measured: float) -> None:
    train = {"steps": 10, "promptsPerStep": 4, "samplesPerPrompt": 4, "tokensPerMicroBatch": tokens}
    estimate = trainer_memory(gpu_spec(processes=1, train=train), QWEN_1_5B)
    assert estimate.total / GIB == pytest.approx(measured, rel=0.1)


def test_bytes_per_parameter_are_those_of_the_distributed_optimizer() -> None:
    """bfloat16: 6 + 12/d, float32: 8 + 8/d."""
    for dtype, per_parameter in (("bfloat16", 6 + 12 / 8), ("float32", 8 + 8 / 8)):
        spec = make_spec(
            trainer={"device": "gpu", "processesPerNode": 8}, model={"path": "/data/model", "dtype": dtype}
        )
        m = trainer_memory(spec, NOMINAL)
        assert (m.weights + m.gradients + m.optimizer) / NOMINAL.parameters == pytest.approx(per_parameter)


def test_recomputation_offload_and_other_models_count() -> None:
    plain = trainer_memory(gpu_spec(), NOMINAL)
    full = trainer_memory(gpu_spec(trainer={"recompute": {"granularity": "full"}}), NOMINAL)
    assert full.activations < plain.activations / 10
    kl = {"kl": {"coefficient": 0.1}}
    held = trainer_memory(gpu_spec(algorithm=kl, reference={"offload": False}), NOMINAL)
    assert held.other_models == plain.weights
    assert trainer_memory(gpu_spec(algorithm=kl), NOMINAL).other_models == 0
    away = trainer_memory(gpu_spec(trainer={"offload": {"optimizer": True}}), NOMINAL)
    assert away.total == pytest.approx(plain.total - min(plain.optimizer, plain.activations + plain.logits))


def test_a_frozen_base_has_neither_gradients_nor_moments() -> None:
    """Rank 16 beside the queries, keys and values (1536 -> 2048) and down (8960 -> 1536) of 28 layers, over two tensor-parallel ranks and four
    copies."""
    lora = {"rank": 16, "targets": ["linear_qkv", "linear_fc2"]}
    adapters = 28 * 16 * (1536 + 2048 + 8960 + 1536) / 2
    model = {"path": "/data/model", "dtype": "bfloat16"}
    trainer = {"device": "gpu", "processesPerNode": 8, "parallelism": {"tensor": 2}}
    full = trainer_memory(make_spec(trainer=trainer, model=model), QWEN_1_5B)
    found = trainer_memory(make_spec(trainer=trainer, model=model | {"lora": lora}), QWEN_1_5B)
    assert found.weights == full.weights + 2 * adapters
    assert found.gradients == 4 * adapters and found.optimizer == 12 * adapters / 4
    assert found.activations == full.activations


def test_adapters_whose_targets_are_not_named_are_those_of_the_family() -> None:
    """Qwen3-30B-A3B: rank 16 next to queries, keys and values (2048 -> 5120) and the attention's output (4096 -> 2048) of 48 layers."""
    widths = {"hidden_size": 2048, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128}
    experts = {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768}
    counts = {"num_hidden_layers": 48, "vocab_size": 151936, "intermediate_size": 6144}
    shape = Shape.of({"model_type": "qwen3_moe"} | widths | experts | counts)
    model = {"path": "/data/model", "dtype": "bfloat16", "lora": {"rank": 16}}
    assert shape
    found = trainer_memory(make_spec(trainer={"device": "gpu"}, model=model), shape)
    assert found.gradients == 4 * 48 * 16 * (2048 + 5120 + 4096 + 2048)


def test_a_service_trains_adapters_of_the_largest_rank_and_keeps_those_of_all_clients_on_the_host() -> None:
    """As a policy with adapters of that rank. Each client has 2 bytes of each number, 4 of its gradient and 12 of the optimizer's copies, which two
    data-parallel ranks share."""
    trainer = {"device": "gpu", "processesPerNode": 2}
    model = {"path": "/data/model", "dtype": "bfloat16"}
    clients = {"maxRank": 16, "maxModels": 5, "maxTokens": 512}
    spec = make_spec(task="service", service=clients, model=model, trainer=trainer)
    policy = make_spec(model=model | {"lora": {"rank": 16}}, trainer=trainer)
    found, expected = trainer_memory(spec, QWEN_1_5B), trainer_memory(policy, QWEN_1_5B)
    assert (found.weights, found.gradients, found.optimizer) == (
        expected.weights,
        expected.gradients,
        expected.optimizer,
    )
    adapters = found.gradients / 4
    assert host_memory(spec, QWEN_1_5B).offloaded == 2 * 5 * (2 + 4 + 12 / 2) * adapters


def test_the_output_of_latent_attention_is_as_wide_as_its_values() -> None:
    """DeepSeek-V3: 128 heads of 128 -> 7168, the only matrix with an adapter."""
    shape = Shape.of({"model_type": "deepseek_v3"} | DEEPSEEK_V3)
    assert shape and shape.adapters(LoraSpec(rank=8)) == 8 * (128 * 128 + 7168)


def test_a_critic_learns_whole_beside_a_policy_with_adapters() -> None:
    model = {"path": "/data/model", "dtype": "bfloat16", "lora": {}}
    ppo = {"algorithm": {"advantage": "gae"}, "critic": {}}
    spec = make_spec(trainer={"device": "gpu"}, model=model, **ppo)
    assert trainer_memory(spec, QWEN_1_5B).other_models == 18 * QWEN_1_5B.parameters


def test_the_last_stage_holds_the_logits_and_the_first_more_micro_batches() -> None:
    spec = gpu_spec(parallelism={"pipeline": 4})
    m = trainer_memory(spec, NOMINAL)
    assert m.logits == 0, "here the first stage holds more"
    tiny = Shape(4, 64, 4, 2, 16, 128, 1_000_000)
    assert trainer_memory(spec, tiny).logits > 0


def test_a_rollout_holds_its_share_of_the_weights_and_the_cache_of_what_is_in_flight() -> None:
    spec = gpu_spec(rollout={"replicas": 2, "tensorParallel": 4, "sampling": {"maxTokens": 8}})
    m = rollout_memory(spec, NOMINAL)
    assert m.weights == 2 * NOMINAL.parameters / 4
    assert m.kv_cache == 2 * 2 * 36 * (8 / 4) * 128 * 8 * 24, "16 samples over 2 servers, of 16 + 8 tokens"


@pytest.mark.parametrize(
    ("shape", "speculation", "guesses", "layers"),
    [
        (MOE, {"method": "mtp"}, MOE.outside(1, 0) + MOE.mixed + 2 * 64**2, 1),
        (
            NOMINAL,
            {"method": "eagle3", "draft": "/data/draft"},
            4096 * 128 * (3 * 32 + 4 * 8) + 3 * 4096 * 12288 + 3 * 4096**2 + 32_000 * 4096,
            1,
        ),
        (NOMINAL, {"method": "ngram"}, 0, 0),
    ],
    ids=["mtp", "eagle3", "ngram"],
)
def test_a_server_holds_what_guesses_and_its_keys_and_values(
    shape: Shape, speculation: dict[str, Any], guesses: float, layers: int
) -> None:
    plain = gpu_spec(rollout={"tensorParallel": 2})
    guessing = gpu_spec(rollout={"tensorParallel": 2, "speculation": speculation})
    before, found = rollout_memory(plain, shape), rollout_memory(guessing, shape)
    assert found.weights - before.weights == 2 * guesses / 2
    assert found.kv_cache == pytest.approx(before.kv_cache * (shape.layers + layers) / shape.layers)


def test_recomputation_keeps_inputs_and_has_the_activations_of_what_it_computes_again() -> None:
    """Of 36 layers, 1 data-parallel token budget; per token and layer 63488 numbers, of which the input is 4096."""
    tokens, layer, passed = 16384, 4 * 4096 + 2 * 128 * 40 + 3 * 12288, 4096

    def activations(**recompute: Any) -> float:
        changes = {"trainer": {"recompute": {"granularity": "full"} | recompute}}
        train = {"steps": 10, "promptsPerStep": 4, "samplesPerPrompt": 4, "tokensPerMicroBatch": tokens}
        return trainer_memory(gpu_spec(processes=1, train=train, **changes), NOMINAL).activations / (2 * tokens)

    assert activations() == 36 * passed + layer
    assert activations(layers=4) == 9 * passed + 4 * layer
    assert activations(method="block", layers=6) == 6 * passed + 30 * layer + layer


def test_each_of_a_tokens_experts_keeps_a_copy_of_it() -> None:
    """Qwen3-235B-A22B in bfloat16, 1024 tokens of one layer, by hand; and all of its parameters. Gradients of a layer's experts, 1.6 GB for the gate
    and the first matrix, are made in parts of 512 MiB."""
    shape = Shape(94, 4096, 64, 4, 128, 12288, 151936, False, 128, 8, 1536)
    assert shape.parameters == pytest.approx(235e9, rel=0.01)
    train = {"steps": 10, "promptsPerStep": 4, "samplesPerPrompt": 4, "tokensPerMicroBatch": 1024}
    m = trainer_memory(gpu_spec(1, 1, train=train), shape)
    attention, experts = 4 * 4096 + 2 * (64 + 4) * 128, 8 * (4096 + 3 * 1536)
    assert m.activations == 2 * 1024 * 94 * (attention + experts) + 2**29


DEEPSEEK_V3 = {
    "num_hidden_layers": 61,
    "hidden_size": 7168,
    "num_attention_heads": 128,
    "vocab_size": 129280,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}


def test_latents_shared_experts_and_leading_dense_layers_count() -> None:
    """DeepSeek-V3: 671 billion parameters, of which a server keeps 576 numbers per token and layer (arXiv 2412.19437, section 4.2)."""
    shape = Shape.of(DEEPSEEK_V3)
    assert shape and shape.parameters == pytest.approx(671e9, rel=0.001)
    spec = gpu_spec(rollout={"replicas": 2, "tensorParallel": 8, "sampling": {"maxTokens": 8}})
    assert rollout_memory(spec, shape).kv_cache == 2 * 61 * 576 * 8 * 24, "16 samples over 2 servers, of 16 + 8 tokens"
    train = {"steps": 10, "promptsPerStep": 4, "samplesPerPrompt": 4, "tokensPerMicroBatch": 1024}
    attention, experts = 4 * 7168 + 2 * 128 * (192 + 128), 8 * (7168 + 3 * 2048) + 3 * 2048
    activations = 2 * 1024 * 61 * (attention + experts) + 2**29
    assert trainer_memory(gpu_spec(1, 1, train=train), shape).activations == activations


@pytest.mark.parametrize(
    ("changed", "more"),
    [
        ({}, 2 * 2 * 4 * 2048 * 768),
        ({"model": {"path": "/data/model", "dtype": "bfloat16", "lora": {}}}, 0),
        ({"model": {"path": "/data/model", "dtype": "float32"}}, 0),
    ],
    ids=["all weights", "adapters", "one by one in float32"],
)
def test_gradients_of_all_experts_of_a_layer_are_held_before_they_are_added(changed: dict[str, Any], more: int) -> None:
    """Of 4 experts, two matrices of 2,048 x 768 in bfloat16. What depends on tokens doubles with them."""
    shape = Shape(8, 2048, 32, 4, 128, 6144, 151936, experts=4, experts_per_token=2, expert_feed_forward=768)

    def activations(tokens: int) -> float:
        train = {"steps": 10, "promptsPerStep": 4, "samplesPerPrompt": 4, "tokensPerMicroBatch": tokens}
        return trainer_memory(gpu_spec(1, 1, train=train, **changed), shape).activations

    assert 2 * activations(1024) - activations(2048) == more


def test_the_work_of_a_pass_is_that_of_the_parameters_that_take_part_and_of_attention() -> None:
    """DeepSeek-V3 activates 37 billion parameters for each token (arXiv 2412.19437, abstract)."""
    dense = QWEN_1_5B.work
    assert dense.token == 2 * (28 * (2 * 1536 * 128 * (12 + 2) + 3 * 1536 * 8960) + 151936 * 1536)
    assert dense.square == 28 * 12 * 2 * 128, "half of the pairs: two operations for a score, two for its value"
    assert dense.of(10) == 10 * dense.token + 100 * dense.square
    shape = Shape.of(DEEPSEEK_V3)
    assert shape and shape.work.token == pytest.approx(2 * 37e9, rel=0.03)
    assert shape.work.square == 61 * 128 * (192 + 128)


def test_colocated_servers_share_the_samples() -> None:
    rollout = {"placement": "colocated", "tensorParallel": 2, "sampling": {"maxTokens": 8}}
    m = rollout_memory(gpu_spec(2, 4, rollout=rollout), NOMINAL)
    assert m.kv_cache == 2 * 2 * 36 * (8 / 2) * 128 * 4 * 24, "16 samples over 2 x 2 servers, of 16 + 8 tokens"


def colocated(**trainer: Any) -> RLJobSpec:
    rollout = {"placement": "colocated", "vllmArgs": {"gpu-memory-utilization": 0.45}}
    train = {"steps": 10, "promptsPerStep": 4, "samplesPerPrompt": 4, "tokensPerMicroBatch": 16384}
    return gpu_spec(processes=1, train=train, rollout=rollout, trainer=trainer)


def by_phase(spec: RLJobSpec) -> dict[str, PhaseMemory]:
    return {p.name: p for p in phases(spec, QWEN_1_5B, 140 * GIB)}


def test_phases_of_a_colocated_gpu_follow_what_is_awake_and_what_is_needed() -> None:
    found, b = by_phase(colocated()), QWEN_1_5B.parameters
    assert list(found) == ["generate", "score", "train", "sync", "save"]
    beside = TRAINER_OVERHEAD + SERVER_OVERHEAD
    held = {"weights": 2 * b, "gradients": 4 * b, "optimizer": 12 * b, "outside": beside}
    assert found["generate"] == PhaseMemory("generate", 18 * b, PhaseParts(**held, server=63 * GIB))
    assert found["save"] == PhaseMemory("save", 18 * b, PhaseParts(**held, server=63 * GIB))
    sync = PhaseParts(**held, buckets=4 * COLOCATED_BUCKET, server=2 * b)
    assert found["sync"] == PhaseMemory("sync", 18 * b, sync), "two of each end"
    assert found["train"].server == 0 and found["train"].total == trainer_memory(colocated(), QWEN_1_5B).total + beside
    assert 0 < found["score"].estimate < found["train"].estimate, "one layer's activations at a time"


def test_what_is_offloaded_is_there_in_the_phases_that_need_it() -> None:
    found = by_phase(colocated(offload={"parameters": True, "gradients": True, "optimizer": True}))
    b = QWEN_1_5B.parameters
    assert [found[name].state / b for name in ("generate", "score", "train", "sync", "save")] == [0, 2, 18, 2, 14]
    assert found["train"].estimate == by_phase(colocated())["train"].estimate - 12 * b, "moments wait for the update"
    assert found["save"].certain == 14 * b + 63 * GIB, "a save brings them back next to the server"


def test_the_parts_of_a_phase_are_those_of_its_fullest_moment() -> None:
    """Moments and activations are never there together where moments wait for the update, and a save needs no gradients."""
    found = by_phase(colocated(offload={"gradients": True, "optimizer": True}))
    b, train = QWEN_1_5B.parameters, found["train"].parts
    assert (train.weights, train.gradients, train.optimizer) == (2 * b, 4 * b, 0.0) and train.activations > 0
    assert found["train"].state == 18 * b < found["train"].total
    assert (found["save"].parts.gradients, found["save"].parts.optimizer) == (0.0, 12 * b)
    few = {"steps": 10, "promptsPerStep": 4, "samplesPerPrompt": 4, "tokensPerMicroBatch": 64}
    update = phases(gpu_spec(processes=1, train=few, trainer={"offload": {"optimizer": True}}), QWEN_1_5B, 140 * GIB)
    held = {phase.name: phase.parts for phase in update}["train"]
    assert (held.optimizer, held.activations) == (12 * b, 0.0), "the optimizer's step is the fullest moment"


def test_the_host_holds_what_leaves_the_gpus_the_reference_and_a_checkpoint_s_copy() -> None:
    away = {"parameters": True, "gradients": True, "optimizer": True}
    spec = gpu_spec(processes=4, trainer={"offload": away}, algorithm={"advantage": "grpo", "kl": {"coefficient": 0.1}})
    b = QWEN_1_5B.parameters
    copied = 4 * (2 * b / 4 + 12 * b / 4)
    assert host_memory(spec, QWEN_1_5B) == HostMemory(4 * (2 * b + 12 * b / 4), 4 * 2 * b, copied)
    resting = gpu_spec(processes=4, checkpoint={"path": "/data/run", "everySteps": 0})
    assert host_memory(resting, QWEN_1_5B) == HostMemory(0, 0, copied), "the last checkpoint; gradients are not kept"
    alone = host_memory(gpu_spec(processes=1), QWEN_1_5B)
    assert alone.checkpoint == 14 * b


@pytest.mark.parametrize(("dtype", "main"), [("bfloat16", 4), ("float32", 0)])
def test_moments_in_bfloat16_take_four_bytes_less_of_a_parameter_wherever_they_are(dtype: str, main: int) -> None:
    """`main`: bytes of a parameter's float32 copy on the GPU. On the host, and in a checkpoint of it, there is one in any case."""
    b, width, kept = QWEN_1_5B.parameters, {"bfloat16": 2, "float32": 4}[dtype], {"momentsDtype": "bfloat16"}
    for optimizer, moments in (({}, 8), (kept, 4)):
        learning = {"algorithm": {"advantage": "gae"}, "critic": {"optimizer": optimizer}}
        given = {"model": {"path": "/m", "dtype": dtype}, "train": {"steps": 1, "optimizer": optimizer}} | learning
        on_gpu = [n.optimizer / b for n in stages(gpu_spec(processes=1, **given), QWEN_1_5B)[0].networks if n.optimizer]
        assert on_gpu == [moments + main] * 2
        on_host = gpu_spec(processes=1, trainer={"offload": {"update": True}}, **given)
        policy = stages(on_host, QWEN_1_5B)[0].networks[0]
        assert (policy.updated, policy.updated_parameters) == ((moments + 4) * b, b)
        assert policy.on_host - policy.updated == (UPDATING if moments == 8 else 2 * UPDATING)
        assert volume_space(on_host, QWEN_1_5B).checkpoint / b == 2 * (width + moments + 4)


def test_a_critics_gang_has_its_own_optimizer_and_nothing_that_guesses_tokens() -> None:
    speculation = {"method": "eagle3", "draft": "/d", "tokens": 2, "learningRate": 1e-4}
    critic = {"processesPerNode": 1, "optimizer": {"learningRate": 3e-5}}
    spec = gpu_spec(
        algorithm={"advantage": "gae"},
        critic=critic,
        model={"path": "/m", "multiTokenPrediction": True},
        rollout={"speculation": speculation},
    )
    gang = spec_of_gang(spec, "critic")
    assert gang.train.optimizer == spec.critic.optimizer != spec.train.optimizer  # type: ignore[union-attr]
    assert guessed(gang, QWEN_1_5B) == 0 < guessed(spec, QWEN_1_5B)


def guessed(spec: RLJobSpec, shape: Shape) -> float:
    """Parameters of what guesses tokens."""
    return guessing.multi_token(spec, shape) + guessing.draft(spec, shape)


@pytest.mark.parametrize(("dtype", "width"), [("bfloat16", 2), ("float32", 4)])
def test_an_optimizer_on_the_host_takes_nothing_of_the_gpu_and_twelve_bytes_of_the_host(dtype: str, width: int) -> None:
    b, copies = QWEN_1_5B.parameters, 4
    spec = gpu_spec(
        processes=copies,
        model={"path": "/data/model", "dtype": dtype},
        trainer={"offload": {"update": True, "gradients": True}},
        rollout={"placement": "colocated"},
        checkpoint={"path": "/data/run", "everySteps": 0},
    )
    found = by_phase(spec)
    assert [found[name].state / b for name in ("generate", "train", "save")] == [width, width + 4, width]
    assert trainer_memory(spec, QWEN_1_5B).optimizer == 0
    buffers = copies * UPDATING
    held = {"reference": 0, "processes": copies * PROCESSES}
    expected = HostMemory(offloaded=12 * b + buffers, checkpoint=width * b, **held)
    assert host_memory(spec, QWEN_1_5B) == expected, "nothing trains during a save"
    saves = spec.model_copy(update={"checkpoint": spec.checkpoint.model_copy(update={"every_steps": 1})})
    assert host_memory(saves, QWEN_1_5B) == HostMemory(offloaded=12 * b + buffers, checkpoint=(width + 12) * b, **held)


@pytest.mark.parametrize(
    ("every", "steps", "after", "expected"),
    [
        (10, 60, 0, True),
        (10, 60, 40, True),
        (10, 60, 49, True),
        (10, 60, 50, False),
        (60, 60, 0, False),
        (0, 60, 0, False),
    ],
)
def test_the_last_step_is_the_one_that_no_save_in_the_background_is_of(
    every: int, steps: int, after: int, expected: bool
) -> None:
    checkpoint = {"path": "/data/run", "everySteps": every}
    for asynchronous in (True, False):
        spec = make_spec(checkpoint=checkpoint | {"asynchronous": asynchronous}, train={"steps": steps})
        assert spec.saves_in_background(after=after) == (expected and asynchronous)


def test_a_job_that_only_evaluates_holds_weights_alone() -> None:
    """And those of the policy alone, unless its task measures others on held-out data, too."""
    sections: dict[str, Any] = {
        "data": {"validation": ["/data/heldout.parquet"]},
        "evaluation": {"only": True},
        "algorithm": {"kl": {"coefficient": 0.001}, "advantage": "gae"},
        "critic": {},
        "reference": {"offload": False},
        "rewards": [{"model": {"path": "/data/scorer", "offload": False}}],
        "rollout": {"placement": "colocated", "sampling": {"maxTokens": 1024}, "vllmArgs": {"gpu-memory-utilization": 0.4}},
    }  # fmt: skip
    offload = {"parameters": True, "gradients": True, "optimizer": True}
    own = 2 * QWEN_1_5B.parameters
    for trainer in ({}, {"offload": offload}, {"offload": {"update": True}}):
        spec = gpu_spec(processes=1, trainer=trainer, **sections)
        found = {p.name: p.parts for p in phases(spec, QWEN_1_5B, 80 * GIB)}
        assert [*found] == ["generate", "sync"]
        assert found["sync"].weights == pytest.approx(own) and found["sync"].gradients == found["sync"].optimizer == 0
        assert found["generate"].weights == (0 if "parameters" in trainer.get("offload", {}) else found["sync"].weights)
        assert host_memory(spec, QWEN_1_5B).offloaded == (
            found["sync"].weights if found["generate"].weights == 0 else 0
        )
        spec = gpu_spec(processes=1, trainer=trainer, **sections | {"reference": {"offload": True}})
        assert host_memory(spec, QWEN_1_5B).reference == 0, "nor a reference that waits on the host"
    pairs = gpu_spec(
        processes=1,
        task="dpo",
        data={"validation": ["/data/heldout.parquet"]},
        evaluation={"only": True},
        reference={"offload": False},
    )
    (score,) = phases(pairs, QWEN_1_5B, 80 * GIB)
    assert score.parts.weights == pytest.approx(2 * own), "the reference is read"
    assert 0 < score.parts.activations == trainer_memory(pairs, QWEN_1_5B).activations
    assert trainer_memory(pairs, QWEN_1_5B).activations < trainer_memory(gpu_spec(processes=1), QWEN_1_5B).activations


def test_a_reference_that_is_the_base_of_adapters_takes_nothing_of_the_host() -> None:
    model = {"path": "/data/model", "dtype": "bfloat16", "lora": {"rank": 8, "alpha": 8}}
    spec = make_spec(
        model=model, trainer={"device": "gpu"}, algorithm={"advantage": "grpo", "kl": {"coefficient": 0.1}}
    )
    found = host_memory(spec, QWEN_1_5B)
    learnt = QWEN_1_5B.adapters(spec.model.lora) * QWEN_1_5B.layers if spec.model.lora else 0
    assert (found.offloaded, found.reference, found.checkpoint) == (0, 0, 14 * learnt)


def test_a_draft_that_learns_is_whole_on_every_rank() -> None:
    """A draft for Qwen3-8B with 32,000 tokens: 16 bytes of a parameter."""
    speculation = {"method": "eagle3", "draft": "/data/draft", "tokens": 3}
    learns = speculation | {"learningRate": 1e-4}
    kept, learnt = (trainer_memory(gpu_spec(rollout={"speculation": s}), NOMINAL) for s in (speculation, learns))
    attention, feed_forward = 4096 * 128 * (3 * 32 + 4 * 8), 3 * 4096 * 12288
    parameters = attention + feed_forward + 3 * 4096**2 + 32_000 * 4096
    assert learnt.total - kept.total == 16 * parameters


@pytest.mark.parametrize(("pipeline", "embeddings"), [(1, 0), (2, 1)])
def test_a_layer_for_multi_token_prediction_is_one_more_of_the_last_stage_with_its_logits(
    pipeline: int, embeddings: int
) -> None:
    given = {"trainer": {"parallelism": {"pipeline": pipeline}}}
    model = {"path": "/data/model", "dtype": "bfloat16"}
    plain, further = (
        stages(gpu_spec(model=model | more, **given), MOE)[-1] for more in ({}, {"multiTokenPrediction": True})
    )
    layer = MOE.outside(1, 0) + MOE.mixed + 2 * 64**2 + embeddings * MOE.embedding
    more = further.networks[0].gradients - plain.networks[0].gradients
    assert (more, further.logits) == (4 * layer, 2 * plain.logits)
    assert further.activations > plain.activations
    with_critic = gpu_spec(
        model=model | {"multiTokenPrediction": True}, critic={}, algorithm={"advantage": "gae"}, **given
    )
    assert stages(with_critic, MOE)[-1].networks[1].gradients == plain.networks[0].gradients, "a critic is without it"


def test_a_critic_takes_turns_with_the_policy() -> None:
    away = {"parameters": True, "gradients": True, "optimizer": True}
    spec = make_spec(
        trainer={"device": "gpu", "offload": away},
        model={"path": "/data/model", "dtype": "bfloat16"},
        algorithm={"advantage": "gae"},
        critic={"offload": away | {"optimizer": False}},
    )
    found, b = by_phase(spec), QWEN_1_5B.parameters
    assert found["generate"].state == 12 * b
    assert found["train"].state == (12 + 18) * b
    assert found["save"].state == (14 + 14) * b


def test_a_cache_of_a_given_size_bounds_the_server() -> None:
    vllm = {"vllmArgs": {"kv-cache-memory-bytes": 10 * GIB}}
    rollout = {"placement": "colocated"} | vllm
    assert by_phase(gpu_spec(processes=1, rollout=rollout))["generate"].server == 2 * QWEN_1_5B.parameters + 10 * GIB


def sharing(servers: int) -> RLJobSpec:
    """16 samples on two GPUs, each with so many servers of 10 GiB for keys and values."""
    vllm = {"vllmArgs": {"kv-cache-memory-bytes": 10 * GIB}}
    rollout = {"placement": "colocated", "serversPerGpu": servers, "sampling": {"maxTokens": 8}}
    return gpu_spec(processes=2, rollout=rollout | vllm)


@pytest.mark.parametrize("servers", [1, 2, 4])
def test_a_gpu_holds_weights_cache_buckets_and_contexts_of_each_of_its_servers(servers: int) -> None:
    found, weights = by_phase(sharing(servers)), 2 * QWEN_1_5B.parameters
    for phase in ("generate", "save"):
        assert found[phase].server == servers * (weights + 10 * GIB)
    assert found["sync"].server == servers * weights
    assert found["sync"].parts.buckets == (2 + 2 * servers) * COLOCATED_BUCKET, (
        "two of the rank, and two of each server"
    )
    assert {p.parts.outside for p in found.values()} == {TRAINER_OVERHEAD + servers * SERVER_OVERHEAD}
    for phase in ("score", "train"):
        alone = by_phase(sharing(1))[phase]
        assert found[phase].total == alone.total + (servers - 1) * SERVER_OVERHEAD, "servers sleep"


@pytest.mark.parametrize("servers", [1, 2, 4])
def test_the_cache_is_that_of_one_server_with_its_part_of_the_samples(servers: int) -> None:
    spec = sharing(servers)
    assert in_flight(spec) == 16 / 2 / servers
    cache = cache_memory(spec, QWEN_1_5B, 140 * GIB)
    assert (cache.there, cache.wanted) == (10 * GIB, cache_memory(sharing(1), QWEN_1_5B, 140 * GIB).wanted / servers)


@pytest.mark.parametrize("servers", [1, 2, 4])
def test_a_host_has_the_processes_of_each_further_server(servers: int) -> None:
    held = host_memory(sharing(servers), QWEN_1_5B)
    assert held.processes == 2 * (PROCESSES + (servers - 1) * FURTHER_SERVER)
    assert (held.checkpoint, held.offloaded) == (host_memory(sharing(1), QWEN_1_5B).checkpoint, 0)
