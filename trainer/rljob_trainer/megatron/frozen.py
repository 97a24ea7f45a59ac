"""Frozen models on the trainer's ranks: the reference and reward models.

The reference is a copy of the weights in host memory that is swapped in for the policy's, a second model on the device, or the policy itself without
its adapters. A reward model is a value model whose value at the last token of the response is the reward.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import numpy as np
import torch

from rljob_api import names
from rljob_api.spec import RLJobSpec
from rljob_api.spec.model import MegatronReward
from rljob_api.spec.roles import Offload
from rljob_trainer.checkpoint.staging import PinnedMemory, bytes_of
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.megatron.constants import first_difference
from rljob_trainer.megatron.lora import is_adapter
from rljob_trainer.megatron.memory import Offloader
from rljob_trainer.megatron.model import CHECKPOINT, PolicyModel
from rljob_trainer.megatron.multi_token import is_multi_token, policys_parameters
from rljob_trainer.megatron.network import LoadedModel, Network
from rljob_trainer.megatron.packing import MicroBatch, micro_batch
from rljob_trainer.megatron.parallel_state import ParallelState
from rljob_trainer.megatron.step import Step
from rljob_trainer.megatron.value_model import ValueModel
from rljob_trainer.rewards.rules import entries_of

FIELD = "spec.reference.path"
FIELD_OF_CHECKPOINT = "spec.reference.megatronCheckpoint"
LogProbPass = Callable[[Sequence[MicroBatch], float], list[torch.Tensor]]
"""See Network.log_probs."""


def reference_of(
    spec: RLJobSpec,
    policy: LoadedModel,
    log_probs: LogProbPass,
    parallel: ParallelState,
    heartbeat: Callable[[], None],
) -> LogProbPass:
    """A function that computes log-probabilities under the reference. Must be made while `policy` has its initial weights. Collective.

    `log_probs`: the same function under the policy; it needs the policy's parameters on the device.
    Raises ConfigurationError, of spec.reference.path, for a model of another architecture than the policy's, or with other constants.
    """
    reference = spec.reference
    if not reference.offload:
        return separate_reference(spec, parallel, heartbeat)
    adapters, copy = policy.adapters, None
    other = reference.path or reference.megatron_checkpoint
    if other or not adapters:
        source = _load(spec, parallel) if other else None
        copy = HostCopy(policy.modules, (source or policy).modules)
        if source:
            _require_same_constants(policy, source, other)

    def swapped(micro_batches: Sequence[MicroBatch], temperature: float) -> list[torch.Tensor]:
        with ExitStack() as stack:
            if adapters:
                stack.enter_context(adapters.off())
            if copy:
                stack.enter_context(copy.swapped_in())
            return log_probs(micro_batches, temperature)

    return swapped


def separate_reference(spec: RLJobSpec, parallel: ParallelState, heartbeat: Callable[[], None]) -> LogProbPass:
    """The same function for a reference that is a second model on the device. Collective. Raises ConfigurationError as `reference_of`."""
    return Network(_load(spec, parallel), parallel, heartbeat).log_probs


def _load(spec: RLJobSpec, parallel: ParallelState) -> PolicyModel:
    """Load the reference, without adapters: initially their product is zero."""
    path, checkpoint = spec.reference.path, spec.reference.megatron_checkpoint
    own = {"path": path or spec.model.path, "megatron_checkpoint": checkpoint} if path or checkpoint else {}
    model = spec.model.model_copy(update={**own, "lora": None, "multi_token_prediction": False})
    try:
        return PolicyModel(spec.model_copy(update={"model": model}), parallel)
    except ConfigurationError as error:
        if not own:
            raise
        field = FIELD_OF_CHECKPOINT if error.field == CHECKPOINT else FIELD
        raise ConfigurationError(field, error.value, error.rule, error.fix) from error


def _require_same_constants(policy: LoadedModel, reference: PolicyModel, path: str | None) -> None:
    """The policy's modules would compute the reference's log-probabilities with the policy's constants."""
    assert isinstance(policy, PolicyModel), "a model of scores has no reference"
    difference = first_difference(policy.constants, reference.constants)
    if difference:
        name, ours, theirs = difference
        rule = f"has {name} = {theirs}, the policy {ours}, whose place in memory it takes"
        fix = "set spec.reference.offload: false, or give it a gang of its own (spec.reference.processesPerNode)"
        raise ConfigurationError(FIELD, path, rule, fix)


class HostCopy:
    """A copy in host memory of the current parameters of `source` and of its routers' expert biases, to be swapped into `modules`. Adapters, and
    the layer for multi-token prediction with what it needs, are excluded.

    Raises ConfigurationError, of spec.reference.path, when their shapes differ.
    """

    def __init__(self, modules: Sequence[torch.nn.Module], source: Sequence[torch.nn.Module]) -> None:
        self._modules, self._host, self._size = modules, PinnedMemory(), 0
        theirs = _exchanged(source)
        if [p.shape for p in self._ours] != [p.shape for p in theirs]:
            fix = "name a model of the same shapes, or set spec.reference.offload: false"
            raise ConfigurationError(FIELD, "set", "is not of the policy's architecture", fix)
        for tensor in theirs:
            self._size = self._host.write(self._size, bytes_of(tensor))

    @property
    def _ours(self) -> list[torch.Tensor]:
        """Anew each time, because megatron's bfloat16 wrapper puts other buffers in place."""
        return _exchanged(self._modules)

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Inside, the modules have the copied values; afterwards they have their own again, bit for bit."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    @torch.no_grad()
    def _exchange(self) -> None:
        ours = self._ours
        if sum(t.nbytes for t in ours) != self._size:
            raise RuntimeError("the policy's parameters have another type than when the reference was copied")
        at = 0
        for tensor in ours:
            own = tensor.detach().clone()
            self._host.read(at, bytes_of(tensor))
            at = self._host.write(at, bytes_of(own))


def _exchanged(modules: Sequence[torch.nn.Module]) -> list[torch.Tensor]:
    """What makes a model another one of the same architecture: its parameters, and expert biases, which are buffers of routers."""
    found: list[torch.Tensor] = []
    for module in modules:
        found += [p for name, p in policys_parameters(module) if not is_adapter(name)]
        found += [b for name, b in module.named_buffers() if _is_expert_bias(name)]
    return found


def _is_expert_bias(name: str) -> bool:
    return name.split(".")[-1] == "expert_bias" and not is_multi_token(name)


class RewardModels:
    """The entries of spec.rewards with `model`. Every method is collective."""

    def __init__(
        self, spec: RLJobSpec, roles: Collection[str], parallel: ParallelState, heartbeat: Callable[[], None]
    ) -> None:
        """`roles`: the entries to load here. Raises ConfigurationError for a model that is not a classifier with one label."""
        self._spec = spec
        self._models = {
            i: _RewardModel(spec, reward.model, f"spec.rewards[{i}].model.path", parallel, heartbeat)
            for i, reward in enumerate(spec.rewards)
            if reward.model and names.reward_role(i) in roles
        }

    def scores(self, step: Step) -> Iterator[np.ndarray]:
        """Yields for each entry its weighted scores [n]; 0 for rows to which it does not apply."""
        for entry, model in self._models.items():
            weights = self._weights(entry, step.batch.columns.data_source.tolist())
            scores = model.scores(step, {row for row, weight in enumerate(weights) if weight})
            yield np.array(weights) * scores

    def _weights(self, entry: int, data_sources: list[str]) -> list[float]:
        """[n], the weight of the entry for each row; 0 where it does not apply."""
        by_source = {
            source: next((r.weight for i, r in entries_of(self._spec.rewards, source) if i == entry), 0.0)
            for source in set(data_sources)
        }
        return [by_source[source] for source in data_sources]


class _RewardModel:
    def __init__(
        self,
        spec: RLJobSpec,
        reward: MegatronReward,
        field: str,
        parallel: ParallelState,
        heartbeat: Callable[[], None],
    ) -> None:
        model = ValueModel(spec, reward.path, field, parallel)
        if not model.has_head:
            fix = "name a sequence classifier with one label"
            raise ConfigurationError(field, reward.path, "has no classifier's head (score.weight)", fix)
        self._network = Network(model, parallel, heartbeat)
        self._offloader = Offloader(Offload(parameters=reward.offload and not reward.processes_per_node), model.modules)

    def scores(self, step: Step, chosen: set[int]) -> np.ndarray:
        """[n], scores of the `chosen` rows, 0 for the others; on every rank. Uses the micro-batches of training, with the last token of each
        trajectory, where the score is read."""
        if not chosen:
            return np.zeros(len(step.counts))
        micro_batches = [
            micro_batch(
                step.batch.trajectories, [i for i in m.row.rows if i in chosen], step.parallel, with_last_token=True
            )
            for m in step.micro_batches()
        ]
        with self._offloader.using("parameters"):
            parts = self._network.values(micro_batches)
        scores = torch.zeros(len(step.counts), dtype=torch.float64)
        for micro, part in zip(micro_batches, parts, strict=False) if step.parallel.reports_metrics else ():
            for row, values in zip(micro.row.rows, micro.row.collect(part), strict=True):
                scores[row] = values[-1]
        return step.parallel.over_world(scores).numpy()
