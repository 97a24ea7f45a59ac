"""What clients ask about what they have, and about samplers and samples: runs, which are models, what these have saved, and sessions. They see
nothing of other clients."""

import asyncio
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

from aiohttp import web
from pydantic import Field

from rljob_trainer.gateway.completions import number_of, queue_named, queue_of
from rljob_trainer.gateway.registry import SavedModel, most_unnamed, sampler_name, seed_of, session_of
from rljob_trainer.gateway.samples import Samples
from rljob_trainer.gateway.service import GatewayService, UnknownError, creation_of
from rljob_trainer.gateway.wire import bodies, requests
from rljob_trainer.gateway.wire.content import PLAIN, encoding_of
from rljob_trainer.gateway.wire.requests import (
    EXTERNAL_WEIGHTS,
    POLL_SECONDS,
    SAMPLER_WEIGHTS,
    SCHEME,
    WEIGHTS,
    ClientRequest,
    Count,
    read,
    read_rest,
)
from rljob_trainer.wire.service import WorkFailure

TYPES = {WEIGHTS: "training", SAMPLER_WEIGHTS: "sampler", EXTERNAL_WEIGHTS: "external"}
"""What lists call them, by the part of a path."""
REPLACED = "this snapshot is not kept any more: of those without a name only the last {} of a model are. Save one with a name to sample from it later"
RouteAnswer = web.Response | dict[str, Any]


class ListPage(ClientRequest):
    """Which part of a list is wanted."""

    offset: Count = 0
    limit: Annotated[int, Field(ge=1, le=1000)] = 20

    def cut[T](self, entries: Sequence[T]) -> tuple[Sequence[T], dict[str, int]]:
        """The part, and what it is a part of."""
        cursor = {"offset": self.offset, "limit": self.limit, "total_count": len(entries)}
        return entries[self.offset : self.offset + self.limit], cursor


class ListingRoutes:
    """Handlers, of the client's name and the request. Raise UnknownError and ValidationError."""

    def __init__(self, service: GatewayService, base_model: str) -> None:
        self._service, self._base = service, base_model

    async def weights_info(self, client: str, request: web.Request) -> RouteAnswer:
        saved = self._service.named(client, (await read(request, requests.WeightsInfo)).tinker_path)
        trained = {"train_unembed": not saved.rank, "train_mlp": saved.mlp, "train_attn": saved.attention}
        return {"base_model": self._base, **of_rank(saved.rank)} | trained | {"optimizer_config": {"type": "adamw"}}

    async def run(self, client: str, request: web.Request) -> RouteAnswer:
        return self._run(client, request.match_info["run"])

    async def runs(self, client: str, request: web.Request) -> RouteAnswer:
        """Models that are trained, and those of which something is saved, by their names."""
        page = ListPage.model_validate(dict(request.query))
        runs, cursor = page.cut(
            sorted(self._trained(client) | {s.model for s in self._service.saved_by(client).values()})
        )
        return {"training_runs": [self._run(client, run) for run in runs], "cursor": cursor}

    async def checkpoints(self, client: str, request: web.Request) -> RouteAnswer:
        run = request.match_info["run"]
        return {
            "checkpoints": [
                _checkpoint(path, s) for path, s in self._service.saved_by(client).items() if s.model == run
            ]
        }

    async def all_checkpoints(self, client: str, request: web.Request) -> RouteAnswer:
        """Of all runs; the newest first."""
        newest = sorted(self._service.saved_by(client).items(), key=lambda item: item[1].time, reverse=True)
        checkpoints, cursor = ListPage.model_validate(dict(request.query)).cut(newest)
        return {"checkpoints": [_checkpoint(path, saved) for path, saved in checkpoints], "cursor": cursor}

    async def sessions(self, client: str, request: web.Request) -> RouteAnswer:
        """Those that have not ended."""
        sessions, _ = ListPage.model_validate(dict(request.query)).cut(self._sessions(client))
        return {"sessions": sessions}

    async def session(self, client: str, request: web.Request) -> RouteAnswer:
        name = request.match_info["session"]
        if name not in self._sessions(client):
            raise UnknownError(f"there is no session {name}")
        samplers = [sampler for sampler in self._service.names.samplers if session_of(sampler) == name]
        runs = [run for run in sorted(self._trained(client)) if session_of(run) == name]
        return {"training_run_ids": runs, "sampler_ids": samplers}

    async def delete(self, client: str, request: web.Request) -> RouteAnswer:
        await self._service.delete(client, _saved_path(request))
        return {}

    async def keep(self, client: str, request: web.Request) -> RouteAnswer:
        ttl = (await read(request, requests.KeepFor)).ttl_seconds
        await self._service.keep(client, _saved_path(request), ttl or 0)
        return {}

    def _run(self, client: str, run: str) -> dict[str, Any]:
        saved = [s for s in self._service.saved_by(client).values() if s.model == run]
        rank = saved[0].rank if saved else creation_of(self._service.book(client, run)).rank
        described = {"training_run_id": run, "base_model": self._base, "model_owner": client}
        session = self._service.names.sessions.get(session_of(run))
        heard = time.time() - (self._service.clock.seconds - session.heard) if session else 0.0
        return described | of_rank(rank) | {"last_request_time": _time(max([heard, *(s.time for s in saved)]))}

    def _sessions(self, client: str) -> list[str]:
        return [name for name, session in self._service.names.sessions.items() if session.client == client]

    def _trained(self, client: str) -> set[str]:
        return {book.line.model for book in self._service.books_of(client)}


def of_rank(rank: int) -> dict[str, Any]:
    """What is trained, as the SDK says it. 0: all parameters."""
    return {"is_lora": rank > 0, "lora_rank": rank or None}


def _saved_path(request: web.Request) -> str:
    """What the client calls what a request is about."""
    named = request.match_info
    return f"{SCHEME}{named['run']}/{named['kind']}/{named['name']}"


def _checkpoint(path: str, saved: SavedModel) -> dict[str, Any]:
    return {
        "checkpoint_id": path.removeprefix(SCHEME).partition("/")[2],
        "checkpoint_type": TYPES[path.split("/")[-2]],
        "time": _time(saved.time),
        "tinker_path": path,
        "expires_at": None if saved.expires is None else _time(saved.expires),
    }


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


class SamplingRoutes:
    """Handlers, of the client's name and the request. Raise UnknownError, BusyError."""

    def __init__(self, service: GatewayService, samples: Samples, base_model: str) -> None:
        self._service, self._samples, self._base = service, samples, base_model
        service.sampling = samples
        self._longest = service.spec.max_tokens

    async def create(self, client: str, request: web.Request) -> RouteAnswer:
        asked = await read(request, requests.CreateSamplingSession)
        if asked.model_path is None and asked.base_model != self._base:
            return bodies.refused(400, f"this service samples from {self._base}, not {asked.base_model}")
        if asked.model_path and f"/{SAMPLER_WEIGHTS}/" not in asked.model_path:
            why = f"{asked.model_path} is no snapshot for samplers: save one with save_weights_for_sampler"
            return bodies.refused(400, why)
        name = sampler_name(asked.session_id, asked.sampling_session_seq_id)
        await self._service.sample_from(client, name, asked.model_path or "")
        return {"sampling_session_id": name, "type": "create_sampling_session"}

    async def describe(self, client: str, request: web.Request) -> RouteAnswer:
        name = request.match_info["sampler"]
        path = self._service.sampler(client, name).path
        return {"sampler_id": name, "base_model": self._base, "model_path": path or None}

    async def sample(self, client: str, request: web.Request) -> RouteAnswer:
        most = requests.MOST_JSON + requests.MOST_OF_TOKEN * self._longest
        size = request.content_length if encoding_of(request) == PLAIN else None
        with self._service.memory.taking(client, size or most):
            return await self._sample(client, request, most)

    async def _sample(self, client: str, request: web.Request, most: int) -> RouteAnswer:
        asked = await read(request, requests.Asample, most)
        name = f"{asked.sampling_session_id}:{asked.seq_id}"
        params = await read_rest(request, requests.SampleParams)
        sampler = self._service.sampler(client, asked.sampling_session_id)  # last: its session may end meanwhile
        self._service.hear(client, session_of(name))
        if sampler.replaced:
            params = WorkFailure(message=REPLACED.format(most_unnamed(self._service.spec.max_rank)))
        elif self._service.spec.max_rank:
            self._service.names.sampled(asked.sampling_session_id)
        seed = seed_of(name)
        generation = (
            params if isinstance(params, WorkFailure) else params.request(asked.num_samples, seed, self._longest)
        )
        asked_for = (
            generation if isinstance(generation, WorkFailure) else sampler.of(generation, self._service.files.root)
        )
        self._samples.ask(client, name, asked_for, sampler.directory)
        await self._number(name)
        samples = 0 if isinstance(generation, WorkFailure) else asked.num_samples
        return {"request_id": name, "sample_sequence_ids": [f"{name}:{i}" for i in range(samples)]}

    async def _number(self, name: str) -> None:
        """Have a next gateway know that this one may have the request, before the client waits for it."""
        names, queue, number = self._service.names, queue_of(name), number_of(name)
        if not names.has_number(queue, number):
            await names.number(queue, number, lambda: self._samples.oldest(queue))

    async def retrieve(self, client: str, request: web.Request) -> RouteAnswer:
        """What is complete of a sampler's requests. Of those that a former gateway had all are: the client asks for each, and does again what is not
        known any more."""
        asked = await read(request, requests.RetrieveFutures, requests.MOST_NAMES)
        sampler = asked.target.sampling_session_id
        self._service.sampler(client, sampler)
        self._service.hear(client, session_of(sampler))
        for name in asked.retrieved_request_ids:
            self._samples.fetched(client, name)
        queue, completions = queue_named(sampler, asked.target.cloned_sampler_id), self._samples.completions
        lost = self._lost(sampler, queue, asked.prev_cursor)
        seconds = min(POLL_SECONDS, POLL_SECONDS if asked.timeout is None else asked.timeout)
        found, cursor = await completions.after(queue, asked.prev_cursor, 0.0 if lost else seconds)
        states = dict.fromkeys(lost, "finished") | {c.name: "failed" if c.failed else "finished" for c in found}
        return {"completions": [{"request_id": n, "state": s} for n, s in states.items()], "cursor": cursor}

    def _lost(self, sampler: str, queue: str, cursor: int) -> list[str]:
        """Requests that a former gateway may have had, of which the client has not heard yet."""
        lost = self._service.names.lost
        if self._samples.completions.is_ours(cursor):
            lost.pop(queue, None)
        names = [f"{sampler}:{i}" for i in range(lost[queue].first, lost[queue].beyond)] if queue in lost else []
        return [name for name in names if not self._samples.has(name)]

    async def cancel(self, client: str, request: web.Request) -> RouteAnswer:
        self._samples.cancel(client, (await read(request, requests.RetrieveFuture)).request_id)
        return {}

    async def result(self, client: str, name: str, seconds: float) -> web.Response:
        """Of a request for samples. Raises UnknownError."""
        self._service.hear(client, session_of(name))
        answer = await self._samples.result(client, name, seconds)
        if answer is None:
            return bodies.again(name, "waiting for a server", self._service.away)
        if isinstance(answer, WorkFailure):
            return bodies.failed(answer)
        if answer.size > requests.LARGE:
            return await asyncio.to_thread(bodies.of_samples, answer)
        return bodies.of_samples(answer)
