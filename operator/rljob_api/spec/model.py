"""spec.model, spec.data, spec.rewards: what is trained, on what, and what counts as good."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from rljob_api.base import Model
from rljob_api.spec.common import AbsolutePath, NonNegativeInt, PositiveFloat, PositiveInt


class ModelSpec(Model):
    """The policy's starting point."""

    path: AbsolutePath
    """Hugging Face directory (config.json, safetensors, tokenizer) that every pod of the job can read."""
    init: Literal["hf"] = "hf"
    """What `path` holds. `hf`: a Hugging Face directory, converted on load, straight into the parallel layout."""
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Type of the parameters in training and generation. Optimizer states and gradients are float32."""
    trust_remote_code: bool = False
    """Run Python code that comes with the model directory."""


class DataSpec(Model):
    """Prompts. Parquet files; one row is one prompt."""

    train: Annotated[list[AbsolutePath], Field(min_length=1, max_length=1024)]
    """Files of training prompts, read in this order before shuffling."""
    validation: Annotated[list[AbsolutePath], Field(max_length=1024)] = []
    """Files of held-out prompts, for `evaluation`."""
    prompt_key: str = "prompt"
    """Column of the prompt."""
    answer_key: str = "answer"
    """Column of the expected answer, handed to rewards."""
    data_source_key: str = "data_source"
    """Column that says which reward judges the row."""
    max_prompt_tokens: PositiveInt = 1024
    """Longer prompts are left out; how many is reported."""
    shuffle: bool = True
    """Draw prompts in an order that depends on `seed` and the epoch only."""
    seed: NonNegativeInt = 0
    """Seed of the order and, with step, prompt and sample, of generation."""


class PythonReward(Model):
    """A reward function of the user's, run in a process of its own."""

    path: AbsolutePath
    """A Python file that the pods can read, for example from a ConfigMap volume."""
    function: Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=128)] = "reward"
    """`def reward(prompt: str, response: str, answer: str) -> float` in that file."""


class RewardSpec(Model):
    """Who judges the rows of one data source. Exactly one of `rule` and `python`."""

    data_source: Annotated[str, StringConstraints(min_length=1, max_length=256)] = "*"
    """Value of the data-source column; `*` judges every row that no other entry names."""
    rule: Literal["exactMatch"] | None = None
    """A built-in rule. `exactMatch`: 1 when the response, stripped, equals the answer, else 0."""
    python: PythonReward | None = None
    """A function of the user's."""
    weight: float = 1.0
    """Factor of this reward; several entries for one data source are summed."""
    timeout_seconds: PositiveFloat = 10.0
    """A call that takes longer has failed. A failed reward is counted and reported, and its sample leaves the batch; it is never a silent 0."""
