"""A model with a value for every token: the critic, and reward models, trained or frozen."""

from collections.abc import Iterator
from functools import partial
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from megatron.bridge import AutoBridge
from megatron.bridge.models.hf_pretrained.causal_lm import PreTrainedCausalLM
from megatron.core import parallel_state as mpu
from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region
from megatron.core.transformer.module import MegatronModule

from rljob_api.rules.model import model_violations
from rljob_api.spec import RLJobSpec
from rljob_api.spec.roles import CriticSpec
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.megatron.export import Exporter
from rljob_trainer.megatron.lora import Adapters, Base
from rljob_trainer.megatron.model import load_weights, require_all_weights
from rljob_trainer.megatron.multi_token import MultiTokenLoss
from rljob_trainer.megatron.ownership import Ownership, exported_once
from rljob_trainer.megatron.parallel_state import ParallelState
from rljob_trainer.megatron.provider import DTYPES, MODEL, configure, converting, provide, read_config
from rljob_trainer.megatron.weight_files import keep_open
from rljob_trainer.wire.weights.plan import GatherPhase

SCORE, BIAS = "score.weight", "score.bias"
"""The head of transformers' sequence classifiers, [labels, hidden], applied to the last hidden state, without a bias."""
_HEAD = "output_layer.weight"
"""Its name in megatron."""
LANGUAGE_MODEL, CLASSIFIER = "ForCausalLM", "ForSequenceClassification"
"""Suffixes of transformers' architecture names."""


class ValueHead(MegatronModule):
    """Replaces the output layer: hidden [t, 1, h] -> values [t, 1, 1] in float32. It is replicated on all tensor-parallel ranks."""

    def __init__(self, config: Any, like: torch.Tensor) -> None:
        super().__init__(config=config)
        self.weight = torch.nn.Parameter(like.new_zeros(1, config.hidden_size))

    def forward(self, hidden: torch.Tensor, **_: Any) -> tuple[torch.Tensor, None]:
        if self.config.sequence_parallel:
            hidden = gather_from_sequence_parallel_region(hidden, tensor_parallel_output_grad=False)
        return F.linear(hidden.float(), self.weight.float()), None


class ValueModel:
    """A transformer with a value head on the last pipeline stage; see network.TrainedModel."""

    def __init__(
        self, spec: RLJobSpec, path: str, field: str, parallel: ParallelState, checkpoint: str | None = None
    ) -> None:
        """
        Args:
            path: a Hugging Face directory, whose head is used if it is a classifier; otherwise the head is zero
            field: the field of the spec that names `path`
            checkpoint: a torch_dist directory from which all weights are loaded instead: the critic's if it has one, else the policy's

        Raises ConfigurationError, of `field`, for a model that cannot be used.
        """
        bridge = _open(spec, path, field)
        score = _score(bridge, path, field)
        self.has_head = score is not None
        self.config: Any = bridge.to_megatron_provider(load_weights=checkpoint is None)
        self.config.share_embeddings_and_output_weights = False
        self.config.register_pre_wrap_hook(partial(_put_heads, score=score))  # after the bridge's own, which loads
        configure(self.config, spec, parallel.layout)
        self.modules = provide(self.config, parallel)
        """See `provide`."""
        self.vocabulary: int | None = None
        self.adapters: Adapters | None = None
        self.multi_token: MultiTokenLoss | None = None
        self.exact: ModuleType | None = None
        self.base: Base | None = None
        if checkpoint is None:
            require_all_weights(bridge, self.modules, field, path, but=_HEAD)
        else:
            load_weights(checkpoint, self.modules, "critic", field.replace(".path", ".megatronCheckpoint"))
        self._exporter = Exporter(bridge, self.modules, self.config, but=_HEAD)

    def export(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield from self._exporter.tensors()
        yield SCORE, self._head()

    def export_owned(self, own: Ownership | None = None) -> list[GatherPhase]:
        """Like `export`; the head is a third phase, of the first rank of the last stage. `own`: see Exporter.owned."""
        own = own or exported_once()
        head, owns = self._head(), own.owns and mpu.is_pipeline_last_stage()
        parts = self._exporter.owned(own=own)
        return [*parts, GatherPhase(iter([(SCORE, head)]), owns, head.nbytes if owns else 0)]

    def export_adapters(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield from ()

    def hugging_face_config(self, config: dict[str, Any]) -> dict[str, Any]:
        """The config.json of a sequence classifier with one label."""
        architectures = [a.replace(LANGUAGE_MODEL, CLASSIFIER) for a in config["architectures"]]
        return config | {"architectures": architectures, "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}

    def _head(self) -> torch.Tensor:
        """[1, h], the head of the last stage, on every rank. Collective."""
        own = [module.output_layer.weight.detach() for module in self.modules if module.post_process]
        device = next(self.modules[0].parameters()).device
        head = (
            own[0].clone()
            if own
            else torch.empty(1, self.config.hidden_size, dtype=self.config.params_dtype, device=device)
        )
        last = mpu.get_pipeline_model_parallel_last_rank()
        dist.broadcast(head, last, group=mpu.get_pipeline_model_parallel_group())
        return head


def critic_model(spec: RLJobSpec, critic: CriticSpec, parallel: ParallelState) -> ValueModel:
    """The critic with its initial weights."""
    path = critic.path or spec.model.path
    return ValueModel(spec, path, "spec.critic.path", parallel, critic.megatron_checkpoint)


def _open(spec: RLJobSpec, path: str, field: str) -> AutoBridge:
    """A bridge for a causal model or a classifier, whose backbone has the tensors of the causal model of its family."""
    read_config(path, field)
    with converting(path, field):
        pretrained = PreTrainedCausalLM.from_pretrained(
            path, dtype=DTYPES[spec.model.dtype], trust_remote_code=spec.model.trust_remote_code
        )
        config = pretrained.config
        config.architectures = [a.replace(CLASSIFIER, LANGUAGE_MODEL) for a in config.architectures]
        AutoBridge._validate_config(config, path)
    keep_open(pretrained, path)
    _require_fit(spec, config.to_dict(), path, field)
    return AutoBridge(pretrained)


def _require_fit(spec: RLJobSpec, config: dict[str, Any], path: str, field: str) -> None:
    """Raise ConfigurationError unless the model fits the layout and has the policy's vocabulary, since it reads the policy's token ids."""
    for v in model_violations(spec, config):
        raise ConfigurationError(field, path, f"{v.rule} ({v.field} is {v.value})", v.fix)
    policy = read_config(spec.model.path, MODEL)
    if config["vocab_size"] != policy["vocab_size"]:
        rule = f"has a vocabulary of {config['vocab_size']} tokens, the policy one of {policy['vocab_size']}"
        raise ConfigurationError(field, path, rule, "use a model with the policy's tokenizer")


def _score(bridge: AutoBridge, path: str, field: str) -> torch.Tensor | None:
    """The directory's head [1, h]; None for a causal model."""
    state = bridge.hf_pretrained.state
    names = state.source.get_all_keys()
    if SCORE not in names:
        return None
    if BIAS in names:
        rule = f"its classifier adds {BIAS}, without which its scores would be others"
        raise ConfigurationError(field, path, rule, "use a classifier without a bias, as transformers makes them")
    score = state[SCORE]
    if len(score) != 1:
        rule = f"its classifier has {len(score)} labels"
        raise ConfigurationError(field, path, rule, "use a classifier with one label")
    return score


def _put_heads(modules: list[Any], score: torch.Tensor | None) -> list[Any]:
    for module in modules:
        if module.post_process:
            module.output_layer = ValueHead(module.config, module.output_layer.weight.detach())
            if score is not None:
                module.output_layer.weight.data.copy_(score)
    return modules
