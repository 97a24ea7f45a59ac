"""Snapshots of a service that trains all parameters: directories in Hugging Face's format, from which servers get a whole model as they get the
policies of other tasks (rank/weights).

What is served comes from the files alone, so that any snapshot can be served at any time, by an attempt that did not train it, and to a new server.
A snapshot says what its tensors were when the model was trained (digest), and what the ranks computed for a few sequences of the last pass, which
each server has to compute, too (probe).
"""

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rljob_api import names
from rljob_api.protocol import Control, RolloutEndpoint
from rljob_trainer.checkpoint.files import write_json
from rljob_trainer.megatron.huggingface import write_hugging_face
from rljob_trainer.megatron.service import ServiceEngine
from rljob_trainer.rank.driver_client import ServiceDriverClient
from rljob_trainer.rank.saved_tensors import tensors_of
from rljob_trainer.rank.snapshot_files import policy_of
from rljob_trainer.rank.weights.publisher import Published, Publisher
from rljob_trainer.rank.weights.senders import Senders
from rljob_trainer.wire.collective import Ranks
from rljob_trainer.wire.parity import PROBE_SEQUENCES, PROBE_TOKENS, MismatchError, Probe, arithmetic_of
from rljob_trainer.wire.rollout_server import POLICY
from rljob_trainer.wire.service import Datum, ForwardBackward, RefusedWork, ServePolicy, WorkResult
from rljob_trainer.wire.weights.plan import GatherPhase
from rljob_trainer.wire.weights.transport import transport_of


def senders_of(control: Control, ranks: Ranks, client: ServiceDriverClient | None) -> Senders:
    """The ranks' end of weight updates."""
    token, transport = os.environ[names.ENV_ROLLOUT_TOKEN], transport_of(control.spec, os.environ[names.ENV_POD_IP])
    awaits = client.awaiting if client else None
    return Senders(
        ranks, partial(Publisher, control.attempt, token, transport, awaits), client.heartbeat if client else _nothing
    )


class WholeSnapshots:
    """Every method is collective."""

    def __init__(self, control: Control, ranks: Ranks, engine: ServiceEngine, client: ServiceDriverClient | None):
        self._ranks, self._engine = ranks, engine
        self._base, self._arithmetic = Path(control.spec.model.path), arithmetic_of(control.spec)
        self._senders = senders_of(control, ranks, client)
        self._recent: Sequence[Sequence[int]] = ()
        """Beginnings of a few sequences of the last pass, without their last tokens: a server that scores them generates one more."""

    def saw(self, work: ForwardBackward) -> None:
        """The ranks have done a pass."""
        beginnings = (datum.tokens[:-1][:PROBE_TOKENS].tolist() for datum in work.data[:PROBE_SEQUENCES])
        self._recent = [tokens for tokens in beginnings if len(tokens) > 1]

    def write(self, model: str, scratch: Path) -> None:
        """Write the model into a new directory."""
        self._engine.use(model)
        write_hugging_face(self._engine, self._base, scratch)
        exported = self._senders.publish(0, self._engine.export_owned(), [], None, _nothing)
        log_probs = self._measured(model)
        if self._ranks.is_first and exported:
            probe = {"sequences": self._recent, "log_probs": log_probs}
            write_json(scratch / POLICY, {"digest": exported.version.digest} | probe)

    def serve(self, work: ServePolicy) -> WorkResult:
        """Have servers serve what is in a directory, which rank 0 alone reads. Raises RefusedWork when it is gone or cannot be read, its tensors are
        not those that were saved, or a server that has it computes other log-probabilities."""
        directory = Path(work.path)
        saved = policy_of(directory, self._ranks)
        result = self._sent(work, directory, saved)
        why = self._ranks.broadcast(result if isinstance(result, str) else None)
        if why or isinstance(result, str):
            raise RefusedWork(why)
        return result

    def _sent(self, work: ServePolicy, directory: Path, saved: dict[str, Any]) -> WorkResult | str:
        """What became of it, or why no server may serve it, which rank 0 knows."""
        servers = [RolloutEndpoint.model_validate(server) for server in work.servers]
        tensors = tensors_of(directory, self._engine.heartbeat) if self._ranks.is_first else iter(())
        phases = [GatherPhase(tensors, self._ranks.is_first)]
        try:
            published = self._senders.publish(work.step, phases, servers, self._probe(saved), _nothing)
        except MismatchError as error:  # perhaps of what the client has trained: large weights round differently
            return f"the snapshot {directory}: {error}"
        if published is None:
            return WorkResult()
        if saved.get("digest", published.version.digest) != published.version.digest:
            return f"the snapshot {directory} is damaged: its tensors are not what was saved. Save it again"
        return _outcome(servers, published)

    def _measured(self, model: str) -> list[list[float]]:
        """The ranks' log-probabilities of all tokens but the first of each recent sequence."""
        if not self._recent:
            return []
        data = tuple(_following(tokens) for tokens in self._recent)
        work = ForwardBackward(model=model, seq=0, data=data, loss="cross_entropy", forward_only=True)
        return [values.tolist() for values in self._engine.forward_backward(work).log_probs]

    def _probe(self, saved: dict[str, Any]) -> Probe | None:
        if not saved.get("sequences"):
            return None
        sequences, log_probs = (tuple(map(tuple, saved[key])) for key in ("sequences", "log_probs"))
        return Probe(sequences, log_probs, self._arithmetic)


def _outcome(servers: Sequence[RolloutEndpoint], published: Published) -> WorkResult:
    """Of an update of servers."""
    refused = {pod: why for pod, why in published.failed.items() if pod not in published.unreached}
    return WorkResult(
        served=tuple(server.pod_uid for server in servers if server.pod in published.ok),
        refused={server.pod_uid: refused[server.pod] for server in servers if server.pod in refused},
    )


def _following(tokens: Sequence[int]) -> Datum:
    """A datum whose targets are the next tokens."""
    ids = np.asarray(tokens, np.int32)
    weights = {"weights": np.ones(len(ids) - 1, np.float32)}
    return Datum(ids[:-1], ids[1:].astype(np.int64), weights)


def _nothing() -> None:
    pass
