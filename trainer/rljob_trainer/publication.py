"""The policy on its way to the rollouts: who gets it, that it is the one that was saved, and that both sides agree on it afterwards."""

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from rljob_api.protocol import RolloutEndpoint
from rljob_api.spec import RLJobSpec
from rljob_api.validation.adapters import LORA_B
from rljob_trainer.collective import Ranks
from rljob_trainer.driver.client import DriverClient
from rljob_trainer.megatron.engine import Engine
from rljob_trainer.parity import Probe, arithmetic_of, probe_sample
from rljob_trainer.weights.publisher import Senders


class PolicyMismatchError(RuntimeError):
    """The policy that was restored is not the one that was saved."""


class Publication:
    """Every method is collective. `driver` is None on all ranks but the first."""

    def __init__(self, spec: RLJobSpec, ranks: Ranks, engine: Engine, senders: Senders, driver: DriverClient | None):
        self._spec, self._ranks, self._engine, self._senders, self._driver = spec, ranks, engine, senders, driver
        self._digests: dict[int, str] = {}
        """Of policies, by their step: of the restored one what its checkpoint says, else of the last one that was exported."""
        self._probe: Sequence[Sequence[int]] = ()
        """Of the last batch, when that did not show that rollouts have the policy."""
        self.metrics: dict[str, float] = {}
        """What the last probe found."""

    def expect(self, step: int, digest: str) -> None:
        """The policy of `step` was restored, and its checkpoint says that this is its digest."""
        self._digests = {step: digest}

    def suspend(self, probe: Sequence[Sequence[int]]) -> None:
        """A batch is there: colocated rollouts give their memory to the trainer. `probe`: what to ask those about that get the next policy."""
        self._engine.memory.enter("score")
        self._probe = probe
        if self._senders.colocated:
            self._senders.sleep()

    def replicas(self) -> list[dict[str, Any]]:
        """Who is to get the policy that was trained last, once nothing is generated under the one before."""
        while "replicas" not in (answer := self._ranks.broadcast(self._driver.replicas() if self._driver else None)):
            pass
        return answer["replicas"]

    def publish(self, step: int, replicas: Sequence[dict[str, Any]]) -> None:
        """Send the policy of `step` to these rollouts. With none, nothing is exported.

        Raises PolicyMismatchError when a restored policy is not the saved one, MismatchError when a rollout's log-probabilities are another's.
        """
        if replicas:
            self._send(step, replicas)
        elif self._driver:
            self._driver.published(step, "", {}, 0.0)

    def digest(self, step: int) -> str:
        """Of the policy of `step`, the last one that was trained; known on the first rank only."""
        if not self._ranks.broadcast(step in self._digests):
            self._send(step, [])
        return self._digests.get(step, "")

    def _send(self, step: int, replicas: Sequence[dict[str, Any]]) -> None:
        self._engine.memory.enter("sync")
        began = time.monotonic()
        probe = self._measured_probe() if replicas else None
        self._release()
        targets = [RolloutEndpoint.model_validate(r) for r in replicas]
        published = self._senders.publish(step, self._exported(), targets, probe)
        if not (self._driver and published):
            return
        digest = published.version.digest
        if published.difference:
            mean, largest = published.difference
            self.metrics = {"train_rollout/probe_diff_mean": mean, "train_rollout/probe_diff_max": largest}
        if self._digests.get(step, digest) != digest:
            raise PolicyMismatchError(f"step {step} was restored as {digest}, its manifest says {self._digests[step]}")
        self._digests = {step: digest}
        self._driver.published(step, digest, published.failed, time.monotonic() - began)

    def _measured_probe(self) -> Probe | None:
        """What those who get the policy are to agree with."""
        if not self._probe:
            return None
        measured = self._engine.log_probs([probe_sample(tokens) for tokens in self._probe])
        sequences = tuple(map(tuple, self._probe))
        return Probe(sequences, tuple(tuple(values.tolist()) for values in measured), arithmetic_of(self._spec))

    def _exported(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The policy. Servers resume only after the whole update has been received: what parameters took on these GPUs is free again then."""
        lora = self._spec.model.lora
        if lora and lora.sync == "adapters":
            yield from scaled(self._engine.export_adapters(), lora.alpha / lora.rank)
        else:
            yield from self._engine.export()
        self._release()
        self._engine.memory.enter("generate")

    def _release(self) -> None:
        """Colocated: no rank keeps memory that it does not need."""
        if self._senders.colocated:
            self._engine.release_memory()
            self._ranks.barrier()


def scaled(adapters: Iterable[tuple[str, torch.Tensor]], scale: float) -> Iterator[tuple[str, torch.Tensor]]:
    """As rollouts get them: B times `scale`, so that W x + B A x is what the policy computes."""
    for name, tensor in adapters:
        yield name, tensor * scale if name.endswith(LORA_B) else tensor
