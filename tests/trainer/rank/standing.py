"""A server without vLLM: its workers are threads that receive as vLLM's workers do, and keep what they are sent."""

import json
import os
import pickle
import signal
import threading
import traceback
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import torch

from rljob_api.protocol import RolloutEndpoint
from rljob_trainer.rank.weights.publisher import Published, Publisher
from rljob_trainer.rank.weights.sender import Sent
from rljob_trainer.server.weights.partial_tensor import PartialTensor
from rljob_trainer.server.weights.reception import Reception
from rljob_trainer.server.weights.source import Connection, WorkerPlace
from rljob_trainer.wire.weights import chain
from rljob_trainer.wire.weights.bucket import Entry, digest, pack, total
from rljob_trainer.wire.weights.door import Door
from rljob_trainer.wire.weights.plan import GatherPhase
from rljob_trainer.wire.weights.protocol import Offer, PolicyVersion
from rljob_trainer.wire.weights.slices import Needs, Slice
from trainer.traffic import Traffic

Tensors = dict[str, torch.Tensor]
HERE = "127.0.0.1"
SHUTDOWN_SECONDS = 0.01
"""Within which a server ends; 0.5 by default, for each server of each test."""


def publish_together(
    publishers: Sequence[Publisher],
    phases: Callable[[int], Sequence[GatherPhase]],
    servers: Sequence[RolloutEndpoint],
    step: int = 0,
) -> tuple[Published, list[Sent]]:
    """A policy from several senders at once, the first of which coordinates. `phases`: what the sender at an index sends."""
    with publishers[0].update(servers) as update, ThreadPoolExecutor(len(publishers)) as pool:
        opened = update.open([publisher.sender.offer for publisher in publishers])
        sending = [
            pool.submit(publisher.sender.send, phases(i), opened, i, lambda: None)
            for i, publisher in enumerate(publishers)
        ]
        sent = [future.result(120) for future in sending]
        version = PolicyVersion(1, step, total(part.digest for part in sent))
        return update.commit(version, sent, None), sent


def digest_of(tensors: Tensors) -> str:
    """Of a whole policy."""
    (bucket,) = pack(iter(tensors.items()), 2**30, torch.device("cpu"))
    return digest(bucket.entries)


class Worker:
    """One worker of a server."""

    def __init__(
        self, place: WorkerPlace, before: Callable[[int], None], check: Callable[[Iterable[Entry]], None]
    ) -> None:
        """`before` is called with the number of buckets that are loaded, before the next is."""
        self.place, self._before, self._check = place, before, check
        self.needs: dict[str, Slice] = {}
        """What it says it needs of tensors of which it does not need all."""
        self.connections: dict[Offer, Connection] = {}
        self.tensors: Tensors = {}
        """Or slices."""
        self.order: list[list[str]] = []
        """Names in each bucket, as they came."""
        self._buckets: list[weakref.ref[torch.Tensor]] = []
        self.most_held = 0
        """Buckets at the same time."""
        self.reception: Reception | None = None

    def start(self, update: str, offers: list[Offer]) -> None:
        if self.reception:  # of an update that was left open
            self.abandon()
        self.tensors, self.order = {}, []
        self.reception = Reception(self.place, update, chain.WorkerEnd, self._check, self._load)
        self.reception.start(offers, self.connections)

    def finish(self) -> str:
        """The digest of the update."""
        assert self.reception
        _, digest = self.reception.result(20)
        self.connections, self.reception = self.reception.connections, None
        return digest

    def abandon(self) -> None:
        if self.reception:
            self.reception.abandon()
        self.reception, self.connections = None, {}

    def _load(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        self._before(len(self.order))
        views = {name: t.origin.there if isinstance(t, PartialTensor) else t for name, t in tensors}
        self._buckets += [weakref.ref(view._base) for view in list(views.values())[:1] if view._base is not None]
        self.most_held = max(self.most_held, sum(bucket() is not None for bucket in self._buckets))
        found = {name: view.clone() for name, view in views.items()}
        self.tensors |= found
        self.order.append(list(found))


class Handler(BaseHTTPRequestHandler):
    """Requests of a coordinator."""

    server: "Standing"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(self.path)
        self.server.answering.wait(60)
        try:
            status, answer = 200, getattr(self.server, self.path.rpartition("/")[2])(body)
        except Exception as error:
            status, answer = 500, {"error": str(error)}
        self.send_response(409 if self.server.highest else status)
        self.end_headers()
        self.wfile.write(json.dumps({"attempt": self.server.highest} | (answer or {})).encode())

    def log_message(self, *_: object) -> None:
        """Quiet."""


class Standing(ThreadingHTTPServer):
    """One server. Use it as a context, which ends it."""

    daemon_threads = True

    def __init__(
        self,
        pod: str,
        workers: int = 1,
        before: Callable[[int], None] = lambda count: None,
        check: Callable[[Iterable[Entry]], None] = lambda entries: None,
    ) -> None:
        """`before`: see Worker. `check` refuses what it raises for."""
        super().__init__((HERE, 0), Handler)
        self.endpoint = RolloutEndpoint(pod=pod, pod_uid=f"uid-{pod}", url=f"http://{HERE}:{self.server_port}")
        places = (WorkerPlace(self.endpoint.pod_uid, i, Door(HERE), torch.device("cpu")) for i in range(workers))
        self.workers = [Worker(place, before, check) for place in places]
        self.asked: list[str] = []
        self.groups: list[list[str]] = []
        """Of every update that it has served: of each sender the groups that its first worker was in."""
        self.served: list[str] = []
        """Digests of the policies that it has served."""
        self.highest = 0
        """Answer that a higher attempt owns this server."""
        self.answering = threading.Event()
        self.answering.set()
        threading.Thread(target=self.serve_forever, args=(SHUTDOWN_SECONDS,), daemon=True).start()

    def open(self, body: dict[str, Any]) -> dict[str, Any]:
        assert body["server"] == self.endpoint.pod_uid
        for worker in self.workers:
            worker.start(body["session"], [Offer(**sender) for sender in body["senders"]])
        needs = [Needs.of(worker.needs).as_json() for worker in self.workers]
        return {"doors": [worker.place.door.address for worker in self.workers], "needs": needs}

    def commit(self, body: dict[str, Any]) -> dict[str, Any]:
        digests = [worker.finish() for worker in self.workers]
        if digests != body["workers"]:
            raise ValueError(f"the update's digests are {digests}")
        self.served.append(body["digest"])
        self.groups.append([group for found in self.workers[0].connections.values() for group in found.groups])
        return {"paused": 0.5}

    def abort(self, body: dict[str, Any]) -> None:
        for worker in self.workers:
            worker.abandon()

    def sleep(self, body: dict[str, Any]) -> None:
        """Nothing to release."""

    def __exit__(self, *_: Any) -> None:
        self.shutdown()
        for worker in self.workers:
            worker.abandon()
            worker.place.door.close()
        self.server_close()


def in_another_process(work: Callable[[], None]) -> int:
    """Its process id."""
    child = os.fork()
    if not child:
        try:
            torch.set_num_threads(1)
            work()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    return child


@contextmanager
def server_apart(
    pod: str, prepare: Callable[[], None], make: Callable[[str], Standing] = Standing
) -> Iterator[RolloutEndpoint]:
    """A server in a process of its own, in which `prepare` is called first."""
    reader, writer = os.pipe()

    def serve() -> None:
        prepare()
        with make(pod) as server:
            os.write(writer, server.endpoint.dump_json().encode())
            threading.Event().wait()

    child = in_another_process(serve)
    try:
        yield RolloutEndpoint.model_validate_json(os.read(reader, 10_000))
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reader)
        os.close(writer)


class Held(NamedTuple):
    """What the workers of servers in another process have after an update."""

    digests: list[list[str]]
    """[server] -> of every policy that it has served."""
    tensors: list[Tensors]
    """[server] -> of its first worker, which all of its workers have."""
    received: int
    """Bytes over all sockets of that process."""
    most_held: int
    """Buckets at the same time, of one worker."""


@contextmanager
def servers_apart(count: int, workers: int) -> Iterator[tuple[list[RolloutEndpoint], Callable[[], Held]]]:
    """Servers in a process of their own, and what asks them, once, what they have."""
    (asks, ask), (answers, answer) = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        os.close(ask)
        os.close(answers)
        try:
            _serve(count, workers, asks, answer)
        finally:
            os._exit(0)
    os.close(asks)
    os.close(answer)
    with os.fdopen(answers, "rb") as reader, os.fdopen(ask, "wb") as writer:
        endpoints = [RolloutEndpoint.model_validate(e) for e in pickle.load(reader)]

        def held() -> Held:
            writer.write(b".")
            writer.flush()
            found: Held = pickle.load(reader)
            return found

        yield endpoints, held
    os.waitpid(child, 0)


def _serve(count: int, workers: int, asks: int, answer: int) -> None:
    torch.set_num_threads(1)
    servers = [Standing(f"rollout-{i}", workers) for i in range(count)]
    with os.fdopen(answer, "wb") as writer:
        pickle.dump([server.endpoint.model_dump(by_alias=True) for server in servers], writer)
        writer.flush()
        if os.read(asks, 1):
            for server in servers:
                assert len({tuple(sorted(worker.tensors)) for worker in server.workers}) == 1
            most = max(worker.most_held for server in servers for worker in server.workers)
            tensors = [server.workers[0].tensors for server in servers]
            pickle.dump(Held([s.served for s in servers], tensors, Traffic.now().received, most), writer)
            writer.flush()
        os.read(asks, 1)  # until the other side is closed
