"""What is said of a family of models: what its config.json may say, how it is cut over ranks, and where it generates."""

from dataclasses import dataclass, field
from typing import Any, Literal, get_args

DeviceType = Literal["gpu", "cpu"]
Method = Literal["mtp", "eagle3", "ngram"]
"""What guesses tokens: `rollout.speculation.method`."""
METHODS: tuple[Method, ...] = get_args(Method)
Way = Literal["tensor", "pipeline", "context", "expert"]
DENSE: tuple[Way, ...] = ("tensor", "pipeline", "context")
EXPERTS: tuple[Way, ...] = (*DENSE, "expert")
TENSOR: tuple[Way, ...] = ("tensor",)
ATTENTION = ("linear_qkv", "linear_proj")
ADAPTED = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")
PARTS = {
    "linear_q": "q_proj",
    "linear_k": "k_proj",
    "linear_v": "v_proj",
    "linear_fc1_gate": "gate_proj",
    "linear_fc1_up": "up_proj",
}
"""transformers' names of targets that are parts of a matrix of megatron-core's."""
MODULES: dict[str, tuple[str, ...]] = {
    "linear_qkv": ("q_proj", "k_proj", "v_proj"),
    "linear_proj": ("o_proj",),
    "linear_fc1": ("gate_proj", "up_proj"),
    "linear_fc2": ("down_proj",),
    **{target: (module,) for target, module in PARTS.items()},
}
"""transformers' names, by target."""
"""Matrices of a layer that LoRA can adapt, by megatron-core's names."""
LATENTS = "queries, keys and values come from latents"
OF_EXPERTS = "its feed-forward layers are experts"
"""Reasons for which the other matrices of a family have no adapters."""


@dataclass(frozen=True, slots=True)
class Family:
    """Models of one `model_type` in config.json."""

    model_type: str
    models: str
    """Names of well-known models of the family."""
    layouts: tuple[Way, ...] = DENSE
    """Kinds of parallelism other than data parallelism."""
    rotations: tuple[str, ...] = ("default",)
    """`rope_type` in config.json."""
    windows: bool = False
    """Sliding windows are trained."""
    windows_but: int = 0
    """All layers have them but each so many-th; 0: all layers."""
    biases: bool = False
    """`attention_bias` may be true: queries, keys and values have biases."""
    latent: bool = False
    """Multi-latent attention."""
    sparse: bool = False
    """An indexer chooses the tokens that a query attends to (DeepSeek-V3.2, arXiv 2512.02556)."""
    states: bool = False
    """Some layers keep a state in place of keys and values: gated delta nets (arXiv 2412.06464)."""
    adapters: tuple[str, ...] = ()
    """Matrices that LoRA can adapt."""
    together: str = ""
    """Matrices that are one tensor in the family's files, so that adapters of them cannot be written; empty: none."""
    fused: bool = False
    """Whether queries, keys and values, and gate and up, are one tensor each in the family's files: their adapters have one A."""
    language: str = ""
    """`model_type` of its language model as a directory of its own."""
    vision: bool = False
    """Reads images: a vision tower and the projector behind it come before the language model."""
    servers: tuple[DeviceType, ...] = ("cpu", "gpu")
    """Devices on which vLLM's weights can be updated and its log-probabilities equal the trainer's: as shown by the tests on CPU, and by
    benchmarks/families.py on GPUs."""
    multi_token: bool = False
    """Its layer for multi-token prediction can be trained."""
    guesses: tuple[Method, ...] = ()
    """What its servers may guess tokens by on CPUs: with each they drew from the policy in tests/trainer/server/test_speculation.py."""
    guesses_on_gpus: tuple[Method, ...] = ()
    """The same on GPUs, in benchmarks/guesses.py."""
    whole_experts: bool = False
    """Experts are not cut over ranks: `expertTensor` is 1."""
    values: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    """Keys of config.json that may have these values only, or be left out."""
    required: tuple[str, ...] = ()
    """Keys that config.json must have, since vLLM and transformers take their absence for different things."""
    rope: dict[str, Any] = field(default_factory=dict)
    """Numbers of the rope type that may have this value only, or be left out."""
    tools: str = ""
    """vLLM's parser of the calls that most of its models write; empty: they have no format in common."""
    reasoning: str = ""
    """vLLM's parser of reasoning, where all of its models reason: config.json does not say whether one does, and a parser that expects reasoning
    takes a whole answer for it."""

    def guesses_on(self, device: DeviceType) -> tuple[Method, ...]:
        return self.guesses if device == "cpu" else self.guesses_on_gpus

    @property
    def unadapted(self) -> str:
        """Why LoRA is refused next to other matrices than `adapters`; empty where there are none."""
        if self.states:
            return "not proven next to gated delta nets"
        if "expert" in self.layouts:
            return f"{LATENTS}, and {OF_EXPERTS}" if self.latent else OF_EXPERTS
        if self.vision:
            return "not proven with a vision tower"
        return f"one tensor of its files has {self.together}" if self.together else ""
