"""Where the policy goes: to the rollouts, with a proof that they have it, and into Hugging Face directories, periodically while it trains and at
the end of the job.

There are two proofs: the digest of a restored policy is the one in its checkpoint's manifest, and where a batch did not show it, the rollouts
compute the same log-probabilities as the trainer for a few probe sequences (parity.py).
"""

import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from rljob_api import names
from rljob_api.protocol import RolloutEndpoint
from rljob_api.rules.lora import LORA_B
from rljob_api.spec import RLJobSpec
from rljob_trainer.checkpoint.exports import prune
from rljob_trainer.checkpoint.files import make_directory, replace, sweep, sync
from rljob_trainer.checkpoint.store import Store
from rljob_trainer.data.tokenizer import add_chat_files
from rljob_trainer.megatron.engine import Engine
from rljob_trainer.megatron.huggingface import write_adapters, write_draft, write_hugging_face
from rljob_trainer.rank.driver_client import DriverClient
from rljob_trainer.rank.weights.senders import Senders
from rljob_trainer.wire.collective import Ranks
from rljob_trainer.wire.parity import Probe, arithmetic_of, probe_sample
from rljob_trainer.wire.weights.plan import GatherPhase


class Exports:
    """The exports of one attempt. `driver`, `store`: on rank 0 only."""

    def __init__(self, spec: RLJobSpec, engine: Engine, driver: DriverClient | None, store: Store | None):
        self._spec, self._engine, self._driver, self._store = spec, engine, driver, store
        self._root = Path(spec.checkpoint.path)

    def due(self, step: int) -> bool:
        """Whether the policy of `step` is exported while the job continues."""
        every = self._spec.checkpoint.export_every_steps
        return every > 0 and step % every == 0 and step < self._spec.train.total_steps

    def periodic(self, step: int) -> None:
        """Export to `exports/step_N`, then delete superseded exports."""
        if self._store:
            make_directory(names.exports_dir(self._root))
            sweep(names.exports_dir(self._root))
        self._write(names.export_dir(self._root, step), self._model)
        if self._store:
            prune(self._root, self._spec.checkpoint.export_every_steps, self._spec.checkpoint.keep_exports)

    def final(self, step: int) -> str:
        """Export the model, and its adapters if it has some, next to the checkpoint of `step`. Returns the path of the model; empty if
        checkpoint.exportHuggingFace is false."""
        if not self._spec.checkpoint.export_hugging_face:
            return ""
        target = names.huggingface_dir(self._root, step)
        if self._spec.model.lora:
            self._write(names.adapter_dir(self._root, step), self._adapters)
        self._write(target, self._model)
        return str(target)

    def _adapters(self, target: Path) -> None:
        model = self._spec.model
        assert model.lora, "only then they are written"
        write_adapters(self._engine.export_adapters(), model.lora, Path(model.path), target)

    def _model(self, target: Path) -> None:
        write_hugging_face(self._engine, Path(self._spec.model.path), target)
        if self._engine.draft:
            write_draft(self._engine.draft, target)

    def _write(self, target: Path, write: Callable[[Path], None]) -> None:
        """Write a directory under a temporary name, and rename it once it is complete and durable."""
        scratch = target.with_name(target.name + ".tmp")
        if self._store:
            shutil.rmtree(scratch, ignore_errors=True)
        write(scratch)
        if self._store and self._driver:
            self._store.check()
            add_chat_files(self._spec, scratch)
            sync(scratch, self._engine.heartbeat)
            replace(scratch, target)
            self._driver.exported(target)


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
        """Differences that the last probe found, how long servers paused for the last update, and how long senders waited for them."""

    def expect(self, step: int, digest: str) -> None:
        """See RankTask.restored."""
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
        answer: Any = {}
        while "replicas" not in answer:
            answer = self._ranks.broadcast(self._driver.replicas() if self._driver else None)
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
            self.metrics |= {"time/pause": published.paused, "time/sync_servers": published.waited}
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

    def _phases(self) -> list[GatherPhase]:
        """What this rank gathers and sends: servers get every tensor from the rank that owns it."""
        lora = self._spec.model.lora
        if lora and lora.sync == "adapters":
            return [GatherPhase(scaled(self._engine.export_adapters(), lora.alpha / lora.rank), self._senders.leads)]
        return self._engine.export_served(self._senders.leader if self._senders.colocated else None)

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
