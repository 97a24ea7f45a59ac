"""Publishes the policy to the rollouts, and proves that they have it.

Two checks: the digest of a restored policy is the one in its checkpoint's manifest, and where a batch did not show it, the rollouts compute the same
log-probabilities as the trainer for a few probe sequences (parity.py).
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from rljob_api.protocol import RolloutEndpoint
from rljob_api.rules.lora import LORA_B
from rljob_api.spec import RLJobSpec
from rljob_trainer.megatron.engine import Engine
from rljob_trainer.rank.driver_client import DriverClient
from rljob_trainer.rank.weights.senders import Senders
from rljob_trainer.wire.collective import Ranks
from rljob_trainer.wire.parity import Probe, arithmetic_of, probe_sample
from rljob_trainer.wire.weights.plan import Phase


class PolicyMismatchError(RuntimeError):
    """The weights that were restored are not those that were saved."""


class Publication:
    """Every method but `expect` is collective. `driver`: on rank 0 only."""

    def __init__(self, spec: RLJobSpec, ranks: Ranks, engine: Engine, senders: Senders, driver: DriverClient | None):
        self._spec, self._ranks, self._engine, self._senders, self._driver = spec, ranks, engine, senders, driver
        self._digests: dict[int, str] = {}
        """By step, on rank 0: of the last policy that was exported, or, until then, of the restored one as its manifest says."""
        self._probe: Sequence[Sequence[int]] = ()
        """Token sequences from the last batch; empty when that batch itself proved that the rollouts had the policy."""
        self.metrics: dict[str, float] = {}
        """Differences that the last probe found, and how long servers paused for the last update."""

    def expect(self, step: int, digest: str) -> None:
        """See Task.restored."""
        self._digests = {step: digest}

    def suspend(self, probe: Sequence[Sequence[int]]) -> None:
        """Have colocated rollouts release their memory, since a batch is about to be trained. `probe`: token sequences for the next publication."""
        self._engine.memory.enter("score")
        self._probe = probe
        if self._senders.colocated:
            self._senders.sleep()

    def replicas(self) -> list[dict[str, Any]]:
        """Wait until nothing is generated under the previous policy any more, or need not end; the rollouts that are to get the new one, as
        endpoints."""
        while "replicas" not in (answer := self._ranks.broadcast(self._driver.replicas() if self._driver else None)):
            pass
        return answer["replicas"]

    def publish(self, step: int, replicas: Sequence[dict[str, Any]]) -> None:
        """Send the policy of `step` to these rollouts. With no rollouts nothing is exported.

        Raises PolicyMismatchError when a restored policy is not the saved one, MismatchError when log-probabilities of a rollout differ.
        """
        if replicas:
            self._send(step, replicas)
        elif self._driver:
            self._driver.published(step, "", {}, 0.0)

    def digest(self, step: int) -> str:
        """Digest of the policy of `step`, the last one that was trained; empty on all ranks but the first. Exports the policy if it has to."""
        if not self._ranks.broadcast(step in self._digests):
            self._send(step, [])
        return self._digests.get(step, "")

    def _send(self, step: int, replicas: Sequence[dict[str, Any]]) -> None:
        self._engine.memory.enter("sync")
        began = time.monotonic()
        probe = self._measured_probe() if replicas else None
        self._release()
        targets = [RolloutEndpoint.model_validate(r) for r in replicas]
        published = self._senders.publish(step, self._phases(), targets, probe, self._sent)
        if not (self._driver and published):
            return
        digest = published.version.digest
        if published.ok:
            self.metrics["time/pause"] = published.paused
        if published.difference:
            mean, largest = published.difference
            self.metrics |= {"train_rollout/probe_diff_mean": mean, "train_rollout/probe_diff_max": largest}
        if self._digests.get(step, digest) != digest:
            raise PolicyMismatchError(f"step {step} was restored as {digest}, its manifest says {self._digests[step]}")
        self._digests = {step: digest}
        self._driver.published(step, digest, published.failed, time.monotonic() - began)

    def _measured_probe(self) -> Probe | None:
        """The trainer's log-probabilities of the probe sequences; None when there are none."""
        if not self._probe:
            return None
        measured = self._engine.log_probs([probe_sample(tokens) for tokens in self._probe])
        sequences = tuple(map(tuple, self._probe))
        return Probe(sequences, tuple(tuple(values.tolist()) for values in measured), arithmetic_of(self._spec))

    def _phases(self) -> list[Phase]:
        """What this rank gathers and sends. Servers in pods of their own get every tensor from the rank that owns it."""
        lora = self._spec.model.lora
        if lora and lora.sync == "adapters":
            return [Phase(scaled(self._engine.export_adapters(), lora.alpha / lora.rank), self._senders.leads)]
        if self._senders.colocated:
            return [Phase(self._engine.export(), self._senders.leads)]
        return self._engine.export_owned()

    def _sent(self) -> None:
        """Release memory: servers resume when they have received everything, and need it then."""
        self._release()
        self._engine.memory.enter("generate")

    def _release(self) -> None:
        """With colocated rollouts: return cached device memory on all ranks."""
        if self._senders.colocated:
            self._engine.release_memory()
            self._ranks.barrier()


def scaled(adapters: Iterable[tuple[str, torch.Tensor]], scale: float) -> Iterator[tuple[str, torch.Tensor]]:
    """The adapters with B multiplied by `scale` = alpha / rank, so that rollouts compute W x + B A x."""
    for name, tensor in adapters:
        yield name, tensor * scale if name.endswith(LORA_B) else tensor
