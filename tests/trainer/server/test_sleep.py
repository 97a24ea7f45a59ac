"""What a server's model computes with after a sleep that discards the memory of its weights."""

from types import SimpleNamespace

import pytest
import torch

from rljob_trainer.server.compat import sleep


class Layer(torch.nn.Module):
    """With kernels, as vLLM's attention layers have them."""

    def __init__(self, **tensors: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(1))
        self.impl = SimpleNamespace(heads=8, **tensors)


def test_the_constants_of_kernels_are_as_before() -> None:
    boundaries, scratch = torch.arange(9, dtype=torch.int32), torch.zeros(4)
    layers = [Layer(cu_seqlens_q_buffer=boundaries, topk_indices_buffer=scratch) for _ in range(2)]
    kept = sleep.constants(torch.nn.Sequential(*layers, torch.nn.Linear(2, 2)))
    assert [tensor is boundaries for tensor, _ in kept] == [True], "each once, and nothing else"
    boundaries.zero_()
    sleep.restore(kept)
    assert boundaries.tolist() == list(range(9))


def test_a_worker_has_them_again_with_its_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU: what vLLM's own sleep does to memory is done here."""
    from vllm.v1.worker.gpu_worker import Worker

    boundaries = torch.arange(9, dtype=torch.int32)
    model = Layer(cu_seqlens_q_buffer=boundaries)
    monkeypatch.setattr(Worker, "sleep", lambda _worker, _level: boundaries.zero_())
    monkeypatch.setattr(Worker, "wake_up", lambda _worker, _tags: None)
    sleep.keep_constants()
    worker = SimpleNamespace(model_runner=SimpleNamespace(model=model), get_draft_model=lambda: None)
    Worker.sleep(worker, 2)
    Worker.wake_up(worker, ["kv_cache"])
    assert not boundaries.any()
    Worker.wake_up(worker, ["weights"])
    assert boundaries.tolist() == list(range(9))
