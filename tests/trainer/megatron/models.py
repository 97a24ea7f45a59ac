"""Tiny Hugging Face models and batches whose log-probabilities come from them."""

import json
import random
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from api.specs import make_spec
from rljob_api.spec import RLJobSpec
from rljob_trainer.wire.batch import Batch
from rljob_trainer.wire.trajectory import Segment, Trajectory, appended, sampled
from trainer.megatron.kinds import make_config


def make_model(
    directory: Path, kind: str = "qwen2", tied: bool = True, vocabulary: int = 160, seed: int = 0, **save: Any
) -> Path:
    """A random model with norms and biases away from their neutral values. `save`: for save_pretrained."""
    model = random_model(make_config(kind, vocabulary, tied), seed)
    save_published(model, directory, **save)
    (directory / "tokenizer.json").write_text(json.dumps({"stands": "for a tokenizer"}))
    return directory


def add_multi_token_layer(directory: Path, seed: int = 7, copies: bool = False) -> Path:
    """Put a random layer for multi-token prediction, which transformers does not have, into the one file of a model: another last layer, and what
    reads embedding and hidden states before it. `copies`: also of embedding and output layer, as published models have them."""
    file, config = directory / "model.safetensors", json.loads((directory / "config.json").read_text())
    tensors, layers, width = load_file(file), config["num_hidden_layers"], config["hidden_size"]
    draw = torch.Generator().manual_seed(seed)
    random_of = lambda *shape: torch.randn(*shape, generator=draw)  # noqa: E731
    last, further = f"model.layers.{layers - 1}.", f"model.layers.{layers}."
    found = {
        name.replace(last, further): tensor + 0.1 * random_of(*tensor.shape)
        if tensor.dim() < 2
        else 0.1 * random_of(*tensor.shape)
        for name, tensor in tensors.items()
        if name.startswith(last)
    }
    found |= {f"{further}{norm}.weight": 1 + 0.1 * random_of(width) for norm in ("enorm", "hnorm", "shared_head.norm")}
    found[f"{further}eh_proj.weight"] = 0.1 * random_of(width, 2 * width)
    if copies:
        found[f"{further}embed_tokens.weight"] = tensors["model.embed_tokens.weight"].clone()
        found[f"{further}shared_head.head.weight"] = tensors["lm_head.weight"].clone()
    save_file(tensors | found, file, metadata={"format": "pt"})
    return directory


def random_model(config: Any, seed: int) -> Any:
    torch.manual_seed(seed)
    model = kind_of_model(config).from_config(config)
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if "norm" in name or name.endswith("bias"):
            tensor.data.add_(torch.randn_like(tensor) * 0.1)
    return model


def save_published(model: Any, directory: Path, **save: Any) -> None:
    """Write a model as those of its family are published: Qwen3-VL with experts [experts, in, out]. transformers reads them so, and writes the other
    way round. `save`: for save_pretrained."""
    model.save_pretrained(directory, **save)
    if model.config.model_type == "qwen3_vl_moe":
        _turn_experts(directory)


def _turn_experts(directory: Path) -> None:
    for file in directory.glob("*.safetensors"):
        tensors = load_file(file)
        for name in (n for n in tensors if n.endswith((".experts.gate_up_proj", ".experts.down_proj"))):
            tensors[name] = tensors[name].transpose(1, 2).contiguous()
        save_file(tensors, file, metadata={"format": "pt"})


def kind_of_model(config: Any) -> Any:
    """transformers' class for models of one kind."""
    import transformers

    return transformers.AutoModelForImageTextToText if "vision_config" in config else transformers.AutoModelForCausalLM


def load_model(model: Path) -> Any:
    """In transformers, in float32."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(model)
    return kind_of_model(config).from_pretrained(model, dtype=torch.float32).eval()


def make_batch(model: Path, step: int = 1, groups: int = 4, samples: int = 4, temperature: float = 1.0) -> Batch:
    """Random tokens in prompts of 2-8 and responses of 1-8, with the log-probabilities that the model in `model` gives them."""
    policy = load_model(model)
    draw = random.Random(step)
    tokens = lambda n: tuple(draw.randrange(policy.config.get_text_config().vocab_size) for _ in range(n))  # noqa: E731
    prompts = [tokens(draw.randrange(2, 9)) for _ in range(groups)]
    found = []
    for group, sample in ((g, s) for g in range(groups) for s in range(samples)):
        response = tokens(draw.randrange(1, 9))
        log_probs = response_log_probs(policy, prompts[group], response, temperature)
        found.append(
            Trajectory.of_response(
                prompts[group],
                response,
                log_probs,
                policy_step=step - 1,
                prompt_index=group,
                group=group,
                sample=sample,
                finish_reason="stop",
                reward=float(draw.random() < 0.5),
                data_source="test",
            )
        )
    return Batch.of(step, found, {})


def changed_samples(batch: Batch, change: Callable[[Trajectory], Trajectory]) -> Batch:
    """With what `change` makes of each sample."""
    return Batch.of(batch.step, [change(s) for s in batch.samples], batch.metrics)


def written_by(sample: Trajectory, *policy_steps: int) -> Trajectory:
    """Its response in as many parts as there are policies, of about equal length."""
    n, count = sample.response_length, len(policy_steps)
    cuts = [n * i // count for i in range(count + 1)]
    response: tuple[Segment, ...] = ()
    for (start, end), step in zip(pairwise(cuts), policy_steps, strict=True):
        tokens, log_probs = sample.response_tokens[start:end], sample.response_log_probs[start:end]
        response = appended(response, sampled(tokens, log_probs, step))
    return replace(sample, segments=(sample.segments[0], *response))


def shifted(sample: Trajectory, by: float, policy_step: int | None = None) -> Trajectory:
    """With log-probabilities moved by so much: all, or those of what one policy wrote."""
    chosen = lambda s: s.source == "policy" and policy_step in (None, s.policy_step)  # noqa: E731
    moved = lambda s: replace(s, log_probs=s.log_probs + np.float32(by)) if chosen(s) else s  # noqa: E731
    return replace(sample, segments=tuple(moved(s) for s in sample.segments))


@torch.no_grad()
def response_log_probs(
    model: Any, prompt: tuple[int, ...], response: tuple[int, ...], temperature: float
) -> tuple[float, ...]:
    logits = model(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1] / temperature
    return tuple(logits.log_softmax(-1).gather(1, torch.tensor(response)[:, None])[:, 0].tolist())


def job(
    model: Path,
    tensor: int = 1,
    pipeline: int = 1,
    data: int = 1,
    dtype: str = "float32",
    trainer: dict[str, Any] | None = None,
    **train: Any,
) -> RLJobSpec:
    """A spec for the layout, or with the section `trainer`, with a KL penalty and an entropy bonus so that every term of the loss is there, and
    `train` merged into spec.train."""
    temperature = train.pop("temperature", 1.0)
    algorithm = train.pop("algorithm", {"kl": {"coefficient": 0.1}, "entropyCoefficient": 0.01})
    layout = {"nodes": tensor * pipeline * data, "parallelism": {"tensor": tensor, "pipeline": pipeline}}
    return make_spec(
        model={"path": str(model), "dtype": dtype},
        algorithm=algorithm,
        train={"tokensPerMicroBatch": 64, "optimizer": {"learningRate": 1e-3}} | train,
        trainer={"device": "cpu"} | (trainer or layout),
        rollout={"sampling": {"maxTokens": 8, "temperature": temperature}},
    )


def ranks_of(spec: RLJobSpec) -> int:
    return spec.trainer.nodes * spec.trainer.processes_per_node


def train_step(engine: Any, batch: Batch) -> dict[str, float]:
    """One step of the job, as the loop takes it: a rank has its own part of the trajectories only. Its metrics."""
    step = engine.measure(batch.part(engine.parts(batch.columns)[engine.data_rank]))
    return engine.update(step, engine.objective.advantages(step))
