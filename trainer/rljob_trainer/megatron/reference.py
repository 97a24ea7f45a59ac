"""The frozen policy of the KL penalty: a copy in host memory that takes the policy's place, or a second model on the device."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from rljob_api.spec import RLJobSpec
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.megatron.model import Policy
from rljob_trainer.megatron.packing import MicroBatch
from rljob_trainer.megatron.parallel_state import ParallelState
from rljob_trainer.megatron.passes import PolicyPasses

FIELD = "spec.reference.path"
LogProbs = Callable[[Sequence[MicroBatch]], list[torch.Tensor]]


def reference_of(
    spec: RLJobSpec, policy: Policy, passes: PolicyPasses, parallel: ParallelState, heartbeat: Callable[[], None]
) -> LogProbs:
    """What measures log-probabilities under the reference. To be made while `policy` is still the starting point. Collective.

    Raises ConfigurationError, of spec.reference.path, for a directory that is not of the policy's architecture.
    """
    reference = spec.reference
    if not reference.offload:
        return PolicyPasses(_load(spec, parallel), parallel, spec, heartbeat).log_probs
    copy = HostCopy(policy.modules, _load(spec, parallel).modules if reference.path else policy.modules)

    def log_probs(micro_batches: Sequence[MicroBatch]) -> list[torch.Tensor]:
        with copy.swapped_in():
            return passes.log_probs(micro_batches)

    return log_probs


def _load(spec: RLJobSpec, parallel: ParallelState) -> Policy:
    """Like the policy, but for its gradients."""
    path = spec.reference.path
    if path is None:
        return Policy(spec, parallel, frozen=True)
    model = spec.model.model_copy(update={"path": path, "megatron_checkpoint": None})
    try:
        return Policy(spec.model_copy(update={"model": model}), parallel, frozen=True)
    except ConfigurationError as error:
        raise ConfigurationError(FIELD, path, error.rule, error.fix) from error


class HostCopy:
    """Values for the parameters of `modules`, in host memory: those of `source` as they are now.

    Raises ConfigurationError, of spec.reference.path, when they have not the same shapes.
    """

    def __init__(self, modules: Sequence[torch.nn.Module], source: Sequence[torch.nn.Module]) -> None:
        ours, theirs = ([p for m in models for p in m.parameters()] for models in (modules, source))
        if [p.shape for p in ours] != [p.shape for p in theirs]:
            fix = "name a model of the same shapes, or set spec.reference.offload: false"
            raise ConfigurationError(FIELD, "set", "is not of the policy's architecture", fix)
        pin = torch.cuda.is_available()
        copies = [torch.empty_like(p, device="cpu", pin_memory=pin).copy_(p.detach()) for p in theirs]
        self._pairs = list(zip(ours, copies, strict=True))

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Inside, the modules have the copied values; afterwards their own again, bit for bit."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    @torch.no_grad()
    def _exchange(self) -> None:
        for parameter, copy in self._pairs:
            own = parameter.detach().clone()
            parameter.copy_(copy)
            copy.copy_(own)
