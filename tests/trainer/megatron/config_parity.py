"""What transformers and the trainer say of the same samples, for any configuration of a kind of models."""

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from rljob_api.spec import RLJobSpec
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.wire.images import Placed
from rljob_trainer.wire.trajectory import Trajectory, prompt, sampled
from trainer.megatron.models import job, random_model, save_published
from trainer.megatron.vision import image_for, image_log_probs
from trainer.ranks import run_ranks

SPREAD = 0.15
"""Of random weights. With transformers' 0.02 attention is nearly even, and what rotates or caps its scores hardly shows."""
DRAW = random.Random(3)
SEQUENCES = [tuple(DRAW.randrange(4, 120) for _ in range(length)) for length in (24, 13)]
"""Both are longer than any window."""
ROUNDING = 1e-4
"""Of a log-probability, at most. A field with less effect cannot be distinguished from it."""
OF_LATENTS = "rms_norm_eps"
"""transformers has 1e-6 in the norms of latents whatever it says; trainer and vLLM follow it: docs/models.md."""
OF_THE_MODEL = ("model_type", "architectures", "dtype", "transformers_version")
"""What transformers writes into a config.json on its own."""


class Sample(NamedTuple):
    """A prompt, of one token or with an image, and a response."""

    prompt: list[int]
    images: list[Placed]
    response: list[int]


class Subject(NamedTuple):
    """What transformers computes with a configuration."""

    model: Any
    samples: list[Sample]
    said: list[torch.Tensor]
    """Log-probabilities of the samples' responses."""


def wide(config: dict[str, Any]) -> dict[str, Any]:
    """With larger weights, in sections too."""
    sections = {key: wide(value) for key, value in config.items() if key in ("text_config", "vision_config") and value}
    return config | sections | {"initializer_range": SPREAD}


def subject(usual: Any, config: Mapping[str, Any], weights: dict[str, Any] | None = None) -> Subject | None:
    """None: transformers refuses it, or cannot have `weights`, which it gets instead of random ones."""
    try:
        model = random_model(type(usual)(**deepcopy(dict(config))), 0).eval()  # transformers changes what it is given
        if weights:
            model.load_state_dict(weights, strict=False)  # raises for other shapes
        samples = samples_of(model.config)
        said = [torch.from_numpy(image_log_probs(model, *sample[:2], _array(sample.response))) for sample in samples]
    except Exception:
        return None
    return Subject(model, samples, said) if all(values.isfinite().all() for values in said) else None


def samples_of(config: Any) -> list[Sample]:
    """SEQUENCES; and one that begins with an image, where a model sees, cut into patches as its configuration says."""
    found = [Sample([first], [], rest) for first, *rest in SEQUENCES]
    vision = getattr(config, "vision_config", None)
    if vision is None:
        return found
    image = image_for(vision, (4, 2), 5)
    first = [4, config.vision_start_token_id]
    shown = [*first, *[config.image_token_id] * image.tokens, config.vision_end_token_id]
    return [*found, Sample(shown, [(len(first), image)], list(SEQUENCES[1]))]


def _array(tokens: Sequence[float]) -> Any:
    return torch.tensor(tokens).numpy()


def saved(model: Any, directory: Path, config: Mapping[str, Any] | None = None) -> Path:
    """As such models are published; with a config.json that has `config` as it is, if there is one."""
    save_published(model, directory)
    file = directory / "config.json"
    if config:
        own = {key: value for key, value in json.loads(file.read_text()).items() if key in OF_THE_MODEL}
        file.write_text(json.dumps(dict(config) | own))
    return directory


def training(directory: Path) -> RLJobSpec:
    return job(directory, tokensPerMicroBatch=4096, batches={"replay": "/batches"})


def trained(directory: Path, samples: list[Sample]) -> list[torch.Tensor] | None:
    """The trainer's log-probabilities of the responses; None: it refuses the model."""
    spec = training(directory)

    def on_a_rank() -> list[torch.Tensor] | None:
        from rljob_trainer.megatron.engine import Engine

        try:
            return list(Engine(spec, lambda: None).log_probs([*trajectories(samples)]))
        except ConfigurationError:
            return None

    return run_ranks(1, on_a_rank)[0]


def trajectories(samples: list[Sample]) -> Iterator[Trajectory]:
    for number, sample in enumerate(samples):
        written = {"policy_step": 0, "prompt_index": number, "group": number, "sample": 0, "data_source": "test"}
        drawn = (0.0,) * len(sample.response)
        segments = (prompt(sample.prompt, sample.images), sampled(_array(sample.response), _array(drawn), 0))
        made = Trajectory.of_response((0,), sample.response, drawn, finish_reason="stop", reward=0.0, **written)
        yield replace(made, segments=segments)


def difference(some: list[torch.Tensor], others: list[torch.Tensor]) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(some, others, strict=True))
