"""In which direction each setting moves the model of a step's seconds, and what two GPUs have of one's speed (docs/evidence/gpus.md)."""

from typing import Any

import pytest

from api.specs import make_spec
from rljob_api.sizing.devices import device
from rljob_api.sizing.network import cards
from rljob_api.sizing.shape import Shape
from rljob_api.sizing.speed import Speed, speed
from rljob_api.sizing.training import STARTING, Machine

QWEN_1_5B = Shape(28, 1536, 12, 2, 128, 8960, 151936, tied=True)
QWEN_7B = Shape(28, 3584, 28, 4, 128, 18944, 152064)
QWEN_235B = Shape(94, 4096, 64, 4, 128, 0, 151936, experts=128, experts_per_token=8, expert_feed_forward=1536)


def machine(gpu: str, network: str = "8x400g") -> Machine:
    found = device(gpu)
    assert found.rates
    return Machine(found.rates, found.bytes, cards(network))


def step(shape: Shape, gpu: str = "h100", network: str = "8x400g", **changes: Any) -> Speed:
    trainer = {"device": "gpu", "nodes": 1, "processesPerNode": 8} | changes.pop("trainer", {})
    rollout = {"placement": "colocated", "sampling": {"maxTokens": 1024}} | changes.pop("rollout", {})
    data = {"train": ["/data/train.jsonl"], "maxPromptTokens": 256}
    train = {"steps": 1, "promptsPerStep": 64, "samplesPerPrompt": 8} | changes.pop("train", {})
    own = {key: changes.pop(key) for key in {"lora", "dtype"} & changes.keys()}
    model = {"path": "/data/model", "dtype": "bfloat16"} | own
    spec = make_spec(trainer=trainer, rollout=rollout, data=data, train=train, model=model, **changes)
    return speed(spec, shape, machine(gpu, network))


@pytest.mark.parametrize(
    ("sizes", "tokens", "given", "measured"),
    [
        ({}, 16_384, {}, 0.96),
        ({"tensor": 2}, 16_384, {}, 0.80),
        ({"pipeline": 2}, 8_192, {}, 0.77),
        ({"pipeline": 2}, 8_192, {"num_layers_in_first_pipeline_stage": 16}, 0.865),
    ],
    ids=["data", "tensor", "pipeline", "pipeline of 16 and 12 layers"],
)
def test_two_gpus_train_1_5_b_at_about_the_measured_part_of_one_gpus_speed(
    sizes: dict[str, int], tokens: int, given: dict[str, int], measured: float
) -> None:
    def train(processes: int, sizes: dict[str, int], given: dict[str, int]) -> float:
        trainer = {"processesPerNode": processes, "parallelism": sizes, "transformerConfig": given}
        steps = {"promptsPerStep": 8, "tokensPerMicroBatch": tokens}
        return step(QWEN_1_5B, "h200", trainer=trainer, train=steps).train

    assert train(1, {}, {}) / 2 / train(2, sizes, given) == pytest.approx(measured, abs=0.06)


def experts(**trainer: Any) -> dict[str, Any]:
    layout = {"tensor": 4, "pipeline": 8, "expert": 8, "expertTensor": 1} | trainer.pop("parallelism", {})
    uneven = {"account_for_embedding_in_pipeline_split": True, "account_for_loss_in_pipeline_split": True}
    return {"nodes": 8, "parallelism": layout, "transformerConfig": uneven} | trainer


def test_what_costs_time_does() -> None:
    rollout, train = {"tensorParallel": 8}, {"promptsPerStep": 256}

    def seconds(network: str = "8x400g", **trainer: Any) -> Speed:
        return step(QWEN_235B, network=network, trainer=experts(**trainer), rollout=rollout, train=train)

    plain = seconds()
    again = seconds(recompute={"granularity": "full"})
    assert 1.15 < again.train / plain.train < 1.35, "one forward pass more than three passes"
    assert seconds("400g").train > plain.train, "expert groups and pipelines cross nodes"
    assert seconds("400g").sync == pytest.approx(8 * plain.sync), "every rank of a pod receives its shard"
    assert seconds(parallelism={"virtualPipeline": 1, "pipeline": 8}).train == plain.train
    one_stage_less = {"transformerConfig": {"num_layers_in_first_pipeline_stage": 17}}
    assert seconds(**one_stage_less).train > 1.15 * plain.train, "the busiest stage has 17 layers in place of 12"
    assert seconds(offload={"parameters": True, "optimizer": True}).train > plain.train
    assert seconds(offload={"update": True}).train > plain.train
    assert seconds(nodes=16).train < 0.75 * plain.train


def test_float32_computes_at_its_own_rate() -> None:
    """67 and 989 TFLOP/s of an H100."""
    alone = {"processesPerNode": 1}
    narrow = {"tensorParallel": 1, "vllmArgs": {"gpu-memory-utilization": 0.9}}
    plain = step(QWEN_1_5B, trainer=alone, rollout=narrow)
    found = step(QWEN_1_5B, trainer=alone, rollout=narrow, dtype="float32")
    assert found.train == pytest.approx(plain.train * 989 / 67, rel=0.01)
    assert found.generate > 2 * plain.generate


def test_adapters_spare_the_gradients_of_frozen_matrices() -> None:
    alone = {"processesPerNode": 1}
    assert step(QWEN_7B, trainer=alone, lora={}).train == pytest.approx(2 / 3 * step(QWEN_7B, trainer=alone).train)


def test_small_products_of_experts_wait_for_the_process_that_starts_them_but_where_they_are_one_kernel() -> None:
    """Of Qwen3-30B-A3B in 8 layers on two GPUs with 16 samples of 1,280 tokens each: 64 experts, two products forward and four backward."""
    shape = Shape(8, 2048, 32, 4, 128, 6144, 151936, experts=128, experts_per_token=8, expert_feed_forward=768)
    trainer = {"processesPerNode": 2, "parallelism": {"expert": 2}}

    def train(tokens: int, gpu: str = "b200", **more: Any) -> float:
        steps = {"promptsPerStep": 4, "tokensPerMicroBatch": tokens}
        return step(shape, gpu, trainer=trainer | more, train=steps).train

    products = 8 * 64 * 6 * STARTING
    assert train(1280) == pytest.approx(16 * products, rel=0.03)
    assert train(4 * 1280) == pytest.approx(4 * products, rel=0.1)
    assert train(1280, recompute={"granularity": "full"}) == pytest.approx(16 * products * 8 / 6, rel=0.03)
    assert train(16 * 1280, "a100-80g") > products, "the GPU has more to do"
    assert train(1280, "h200") == train(16 * 1280, "h200") < products


GANG = {"processesPerNode": 8, "parallelism": {"tensor": 2}}
PPO = {"algorithm": {"advantage": "gae", "kl": {"coefficient": 0.1}}}
REWARD = {"rewards": [{"model": {"path": "/data/reward", "offload": False}}]}


@pytest.mark.parametrize(
    ("changes", "passes"),
    [
        (PPO | {"critic": {}}, 3 + 1 + 3 + 1),
        (PPO | {"critic": {}, "lora": {}}, 2 + 1 + 3 + 1),
        (PPO | {"critic": GANG}, 3 + 1),
        (PPO | {"critic": {}, "reference": GANG}, 3 + 3 + 1),
        (REWARD, 3 + 1),
        ({"rewards": [{"model": {"path": "/data/reward"} | GANG}]}, 3),
    ],
    ids=["critic", "critic of adapters", "critic apart", "reference apart", "reward model", "reward model apart"],
)
def test_models_on_the_trainers_ranks_take_turns_with_the_policy(changes: dict[str, Any], passes: int) -> None:
    """Three passes of the policy, one of its reference, and with a critic its values and three more."""
    alone = {"processesPerNode": 1, "nodes": 8}
    shape = Shape(28, 3584, 28, 4, 128, 18944, 152064)
    plain = step(shape, trainer=alone, network="8x9999g")
    found = step(shape, trainer=alone, network="8x9999g", **changes)
    assert found.train / plain.train == pytest.approx(passes / 3, rel=0.03)
    assert ("score" in found.phases) == ("processesPerNode" in str(changes))


def test_the_trainer_waits_for_what_the_slowest_gang_measures_and_then_for_the_critic() -> None:
    gang = {"processesPerNode": 4, "parallelism": {"tensor": 4}}
    models = PPO | {"critic": GANG, "reference": gang, "rewards": [{"model": {"path": "/data/reward"} | GANG}]}
    score = {
        name: step(QWEN_7B, **{k: v for k, v in models.items() if k not in left}).score
        for name, left in {"all": (), "critic": ("reference", "rewards"), "reference": ("critic", "rewards")}.items()
    }
    found = step(QWEN_7B, **models)
    assert score["all"] == pytest.approx(score["critic"] + score["reference"])
    assert found.seconds == pytest.approx(found.generate + found.score + found.train + found.sync)


def test_given_data_is_measured_while_the_batch_before_is_trained_on() -> None:
    data, train = {"train": ["/data/pairs.parquet"], "maxTokens": 1024}, {"steps": 1, "samplesPerStep": 64}
    model = {"path": "/data/model", "dtype": "bfloat16"}
    spec = make_spec(task="dpo", data=data, train=train, model=model, trainer={"device": "gpu"}, reference=GANG)
    found = speed(spec, QWEN_7B, machine("h100"))
    assert list(found.phases) == ["score", "train"]
    assert found.seconds == max(found.score, found.train)


def test_a_response_takes_its_time_however_many_servers_there_are() -> None:
    def generate(replicas: int) -> float:
        rollout = {"placement": "separate", "replicas": replicas}
        return step(QWEN_7B, rollout=rollout, train={"promptsPerStep": 2}).generate

    assert generate(64) == generate(32) > 0.8 * generate(16)


def test_generation_and_training_share_the_time_where_they_have_gpus_of_their_own() -> None:
    apart = {"placement": "separate", "replicas": 4}
    waiting = step(QWEN_7B, rollout=apart, trainer={"parallelism": {"tensor": 2}})
    ahead = step(QWEN_7B, rollout=apart, trainer={"parallelism": {"tensor": 2}}, train={"staleness": 1})
    assert waiting.seconds == pytest.approx(waiting.generate + waiting.train + waiting.sync)
    assert ahead.seconds == pytest.approx(max(ahead.generate, ahead.train) + ahead.sync)
    assert ahead.tokens_per_second > waiting.tokens_per_second
    assert ahead.tokens == 64 * 8 * 1280


def test_a_smaller_cache_takes_more_rounds() -> None:
    small, large = (
        step(QWEN_7B, rollout={"vllmArgs": {"gpu-memory-utilization": share}}, train={"promptsPerStep": 512})
        for share in (0.25, 0.9)
    )
    assert small.generate > 1.3 * large.generate


def test_all_servers_that_are_wanted_generate_however_few_are_required() -> None:
    def generate(replicas: int, required: int) -> float:
        rollout = {"placement": "separate", "replicas": replicas, "minReplicas": required}
        return step(QWEN_7B, rollout=rollout, train={"promptsPerStep": 512}).generate

    assert generate(8, 1) == generate(8, 8)
    assert generate(8, 1) < generate(4, 1) / 1.5 < generate(1, 1) / 4


def taken(shape: Shape, servers: int, cache: float, prompts: int) -> Speed:
    """With `servers` on the GPU and a cache of so many GiB for each."""
    rollout = {"serversPerGpu": servers, "vllmArgs": {"kv-cache-memory-bytes": int(cache * 2**30)}}
    return step(shape, "h200", trainer={"processesPerNode": 1}, rollout=rollout, train={"promptsPerStep": prompts})


def test_servers_that_share_a_gpu_take_turns_on_it() -> None:
    """A second one hides what scheduling takes, and each reads the weights once more."""
    one, two, four = (taken(QWEN_1_5B, servers, 32 / servers, 64).generate for servers in (1, 2, 4))
    assert two < 0.7 * one and two < four < one
    few = [taken(QWEN_7B, servers, 32 / servers, 2).generate for servers in (1, 4)]
    assert few[1] > 2 * few[0], "of few responses the weights are most of what is read"


def test_servers_that_share_a_gpu_share_its_cache() -> None:
    """Half of one's samples at a time, or of two's, take two rounds."""
    assert taken(QWEN_7B, 1, 2, 64).generate > 1.5 * taken(QWEN_7B, 1, 32, 64).generate
    assert taken(QWEN_7B, 2, 1, 64).generate > 1.5 * taken(QWEN_7B, 2, 16, 64).generate


def test_servers_that_share_a_gpu_change_nothing_but_generation() -> None:
    one, two = taken(QWEN_1_5B, 1, 32, 64), taken(QWEN_1_5B, 2, 16, 64)
    assert (one.score, one.train, one.tokens) == (two.score, two.train, two.tokens)
