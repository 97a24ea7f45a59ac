"""Models on gangs of their own: what these hold, and the trainer no longer."""

import pytest

from api.sized import gpu_spec
from rljob_api.sizing.memory import (
    gang_memory,
    trainer_memory,
)
from rljob_api.sizing.shape import NOMINAL


def test_a_model_with_a_gang_of_its_own_leaves_the_trainer_s_memory() -> None:
    shared = {
        "algorithm": {"advantage": "gae", "kl": {"coefficient": 0.1}},
        "critic": {},
        "reference": {"offload": False},
    }
    apart = shared | {"critic": {"processesPerNode": 8}, "reference": {"processesPerNode": 2, "offload": False}}
    policy = trainer_memory(gpu_spec(), NOMINAL)
    assert trainer_memory(gpu_spec(**shared), NOMINAL).other_models > 0
    assert trainer_memory(gpu_spec(**apart), NOMINAL) == policy


def test_the_gang_of_a_frozen_model_holds_its_weights_and_the_activations_of_a_layer() -> None:
    """b P / t; per token b (4 h + 2 (queries + keys and values) + 3 f) / t, with sequence parallelism; logits 6 bytes x tokens x vocabulary / t."""
    gang = {"processesPerNode": 4, "parallelism": {"tensor": 4}, "tokensPerMicroBatch": 1000}
    reward = {"rewards": [{"model": {"path": "/data/reward"} | gang}]}
    spec = gpu_spec(algorithm={"kl": {"coefficient": 0.1}}, reference=gang, **reward)
    held = gang_memory(spec, NOMINAL, "reference")
    assert held.weights == pytest.approx(2 * NOMINAL.parameters / 4)
    assert held.activations == pytest.approx(1000 * 2 * (4 * 4096 + 2 * (4096 + 1024) + 3 * 12288) / 4, rel=0.05)
    assert held.logits == 6 * 1000 * 151936 / 4
    assert (held.gradients, held.optimizer, held.other_models) == (0, 0, 0)
    assert gang_memory(spec, NOMINAL, "reward0").logits == 0


def test_the_gang_of_a_critic_shares_its_optimizer_over_its_own_copies() -> None:
    """bfloat16: 6 + 12/d bytes per parameter, with the d of the critic's gang."""
    critic = {"processesPerNode": 8, "nodes": 2, "parallelism": {"tensor": 4}}
    held = gang_memory(gpu_spec(critic=critic, algorithm={"advantage": "gae"}), NOMINAL, "critic")
    parameters = NOMINAL.parameters / 4
    assert held.weights + held.gradients + held.optimizer == pytest.approx((6 + 12 / 4) * parameters)
