"""The clients' HTTP: every route below /api/v1/, and who may call it.

A refused submission would stop the client's model for ever, since the client has counted it: once model and number are known, a request is accepted,
and what is wrong with it fails its future.
"""

import asyncio
import logging

from aiohttp import web

from rljob_trainer.gateway.clients import Keys
from rljob_trainer.gateway.registry import seed_of, session_of
from rljob_trainer.gateway.samples import Samples
from rljob_trainer.gateway.service import GatewayService, UnknownError, creation_of
from rljob_trainer.gateway.wire import bodies, requests
from rljob_trainer.gateway.wire.bodies import Pass, beginning
from rljob_trainer.gateway.wire.content import PLAIN, SMALL, received
from rljob_trainer.gateway.wire.creation import NOTICE, creation, other_base, why_not
from rljob_trainer.gateway.wire.downloads import Downloads
from rljob_trainer.gateway.wire.fields import MOST_FIELDS, count_fields
from rljob_trainer.gateway.wire.guard import LONGEST_HOLD, CallGuard, RouteHandler
from rljob_trainer.gateway.wire.handlers import ListingRoutes, RouteAnswer, SamplingRoutes, of_rank
from rljob_trainer.gateway.wire.passing import passing
from rljob_trainer.gateway.wire.requests import (
    EXTERNAL_WEIGHTS,
    POLL_SECONDS,
    read,
    read_rest,
)
from rljob_trainer.wire import service as work
from rljob_trainer.wire.service import WorkFailure

API = "/api/v1/"
LARGEST_BODY = 64 * 2**20
"""Most bytes of a request. Clients cut their passes into calls of some 5 MB, between two data."""
LOST = (
    "the service does not keep the result of this request any more: it was fetched long ago, or not fetched while newer results took its room. The "
    "model is as if it had been fetched"
)
FLAGS = {
    "proto_compress_fwdbwd": True,
    "sample_use_retrieve_futures": True,
    "billing_exception_max_pause_duration_sec": LONGEST_HOLD,
}
"""What clients do beyond their defaults: compress their passes, to a fourth or fifth, and ask for what is complete of all of a sampler's samples at
once, in place of holding a connection for each; and wait for room as long as that."""
LATER_FLAGS = {"sample_cancel_enabled": True}
"""Those that clients ask for again and again: say so when nobody waits for a sample any more."""

log = logging.getLogger(__name__)


class Routes:
    """An application of aiohttp."""

    def __init__(self, service: GatewayService, samples: Samples, keys: Keys, base_model: str) -> None:
        """`base_model`: what clients call it."""
        self._service, self._base = service, base_model
        self._guard = guard = CallGuard(service, keys)
        self._sampling = SamplingRoutes(service, samples, base_model)
        self._spec = service.spec
        self._decompressing = asyncio.Lock()
        """One pass at a time is larger than what its client has taken of the memory."""
        given = {"auto_decompress": False}
        self.app = web.Application(client_max_size=LARGEST_BODY, handler_args=given, middlewares=[passing])
        listing = ListingRoutes(service, base_model)
        posts: dict[str, RouteHandler] = {
            "client/config": self._flags,
            "client/dynamic_config": self._later_flags,
            "telemetry": self._accepted,
            "create_session": self._create_session,
            "session_heartbeat": self._heartbeat,
            "sessions/{session}/finish": self._finish,
            "create_model": self._create_model,
            "load_weights": self._load_weights,
            "get_info": self._info,
            "forward_backward": self._forward_backward,
            "optim_step": self._optim_step,
            "save_weights": self._save_weights,
            "save_weights_for_sampler": self._save_for_sampler,
            "save_weights_external": self._save_external,
            "create_sampling_session": self._sampling.create,
            "asample": self._sampling.sample,
            "retrieve_future": self._retrieve,
            "retrieve_futures": self._sampling.retrieve,
            "cancel_future": self._sampling.cancel,
            "weights_info": listing.weights_info,
        }
        gets: dict[str, RouteHandler] = {
            "healthz": self._health,
            "get_server_capabilities": self._capabilities,
            "samplers/{sampler}": self._sampling.describe,
            "training_runs": listing.runs,
            "training_runs/{run}": listing.run,
            "training_runs/{run}/checkpoints": listing.checkpoints,
            "checkpoints": listing.all_checkpoints,
            "sessions": listing.sessions,
            "sessions/{session}": listing.session,
        }
        saved = "training_runs/{run}/checkpoints/{kind}/{name}"
        downloads = Downloads(service, f"{API}{EXTERNAL_WEIGHTS}/")
        gets["training_runs/{run}/checkpoints/external_weights/{name}/external_weights_urls"] = downloads.links
        self.app.router.add_get(f"{API}{EXTERNAL_WEIGHTS}/{{run}}/{{name}}/{{file}}", downloads.file)
        puts: dict[str, RouteHandler] = {f"{saved}/ttl": listing.keep}
        deletes: dict[str, RouteHandler] = {saved: listing.delete}
        for method, handlers in (("POST", posts), ("GET", gets), ("PUT", puts), ("DELETE", deletes)):
            for path, handler in handlers.items():
                self.app.router.add_route(method, API + path, guard.around(handler, path))
        self.app.router.add_route("*", API + "{call:.*}", guard.around(self._unserved))

    async def _flags(self, client: str, request: web.Request) -> RouteAnswer:
        return FLAGS

    async def _later_flags(self, client: str, request: web.Request) -> RouteAnswer:
        return LATER_FLAGS

    async def _accepted(self, client: str, request: web.Request) -> RouteAnswer:
        """It may hold stack traces and headers of a client, and is not looked at."""
        return {"status": "accepted"}

    async def _health(self, client: str, request: web.Request) -> RouteAnswer:
        return {"status": "ok"}

    async def _capabilities(self, client: str, request: web.Request) -> RouteAnswer:
        model = {"model_name": self._base, "max_context_length": self._spec.max_tokens}
        return {"supported_models": [model | {"trainable": True, "sampleable": True}]}

    async def _create_session(self, client: str, request: web.Request) -> RouteAnswer:
        notice = {"info_message": NOTICE} if self._spec.max_rank else {}
        return {"session_id": await self._service.open_session(client)} | notice

    async def _heartbeat(self, client: str, request: web.Request) -> RouteAnswer:
        asked = await read(request, requests.OfSession)
        self._service.hear(client, asked.session_id)
        return {"type": "session_heartbeat"}

    async def _finish(self, client: str, request: web.Request) -> RouteAnswer:
        await self._service.close_session(client, request.match_info["session"])
        return {}

    async def _create_model(self, client: str, request: web.Request) -> RouteAnswer:
        asked = await read(request, requests.NewModel)
        params = await read_rest(request, requests.ModelParams)
        model = f"{asked.session_id}:train:{asked.model_seq_id}"
        why = why_not(params, self._base, self._spec.max_rank)
        await self._service.create(client, creation(model, params), why=why)
        return _future(model, 0)

    async def _load_weights(self, client: str, request: web.Request) -> RouteAnswer:
        target = await read(request, requests.LoadTarget)
        params = await read_rest(request, requests.LoadParams)
        if target.model_id is not None and target.seq_id is not None:
            return await self._ask(
                client, _loading(target.model_id, target.seq_id, params), target.model_id, target.seq_id
            )
        model = f"{target.session_id}:train:{target.model_seq_id}"
        if isinstance(params, WorkFailure):
            await self._service.create(client, creation(model, params), why=params.message)
        else:
            await self._create_from(client, model, params)
        return _future(model, 0)

    async def _create_from(self, client: str, model: str, params: requests.LoadParams) -> None:
        try:
            saved = self._service.named(client, params.path)
        except UnknownError as error:
            why = str(error.args[0])
            await self._service.create(client, creation(model, WorkFailure(message=why)), why=why)
            return
        created = work.CreateModel(
            model=model, seq=0, rank=saved.rank, seed=seed_of(model), mlp=saved.mlp, attention=saved.attention
        )
        why = other_base(params.base_model or self._base, self._base)
        await self._service.create(client, created, params.path, params.optimizer, why)

    async def _info(self, client: str, request: web.Request) -> RouteAnswer:
        asked = await read(request, requests.OfModel)
        made = creation_of(self._service.book(client, asked.model_id))
        described = {"model_id": asked.model_id, **of_rank(made.rank), "model_name": self._base}
        data = {"arch": "", "model_name": self._base, "tokenizer_id": self._base}
        return described | {"type": "get_info", "model_data": data, "optimizer_config": {"type": "adamw"}}

    async def _forward_backward(self, client: str, request: web.Request) -> RouteAnswer:
        with self._service.memory.taking(client, min(request.content_length or LARGEST_BODY, LARGEST_BODY)):
            came = await received(request, LARGEST_BODY)
            if came.size > LARGEST_BODY:
                return await self._pass(client, await came.plain(SMALL), came.size)
            if came.encoding == PLAIN:
                return await self._pass(client, came.body, came.size)
            async with self._decompressing:
                body = await came.plain(LARGEST_BODY + 1)
            with self._service.memory.taking(client, len(body)):
                return await self._pass(client, body, len(body))

    async def _pass(self, client: str, body: bytes, size: int) -> RouteAnswer:
        """`body`: the beginning, if it is too large."""
        why = _too_large(size) if size > LARGEST_BODY else await asyncio.to_thread(_too_many, body)
        if why:
            return await self._ask(client, WorkFailure(message=why), *beginning(body))
        asked = Pass(body)
        try:
            piece: work.ModelWork | WorkFailure = await asyncio.to_thread(asked.work, self._spec.max_tokens)
        except ValueError as error:
            piece = WorkFailure(message=str(error))
        return await self._ask(client, piece, asked.model, asked.seq)

    async def _optim_step(self, client: str, request: web.Request) -> RouteAnswer:
        asked = await read(request, requests.Numbered)
        params = await read_rest(request, requests.OptimStepParams)
        piece = params if isinstance(params, WorkFailure) else params.work(asked.model_id, asked.seq_id)
        return await self._ask(client, piece, asked.model_id, asked.seq_id)

    async def _save_weights(self, client: str, request: web.Request) -> RouteAnswer:
        return await self._save(client, request, requests.SaveWeights, work.SaveState)

    async def _save_for_sampler(self, client: str, request: web.Request) -> RouteAnswer:
        return await self._save(client, request, requests.SaveWeightsForSampler, work.SaveForSampler)

    async def _save_external(self, client: str, request: web.Request) -> RouteAnswer:
        """A snapshot that is not sampled from, but downloaded."""
        return await self._save(client, request, requests.SaveWeightsExternal, work.SaveForSampler)

    async def _save(
        self,
        client: str,
        request: web.Request,
        kind: type[requests.SaveWeights],
        piece: type[work.SaveState | work.SaveForSampler],
    ) -> RouteAnswer:
        asked = await read(request, requests.Numbered)
        rest = await read_rest(request, kind)
        if isinstance(rest, WorkFailure):
            return await self._ask(client, rest, asked.model_id, asked.seq_id)
        saving = piece(model=asked.model_id, seq=asked.seq_id, path="")
        name = rest.saved_as(asked.model_id, asked.seq_id)
        return await self._ask(client, saving, saves=name, ttl=rest.ttl_seconds or 0)

    async def _unserved(self, client: str, request: web.Request) -> RouteAnswer:
        """A call that is not there. Has it a number of a model, its future fails: the client counts it, and later requests wait for it."""
        call = request.match_info["call"]
        try:
            asked = await read(request, requests.Numbered)
        except ValueError:
            return bodies.refused(404, f"{call} is not served")
        return await self._ask(client, WorkFailure(message=f"{call} is not served"), asked.model_id, asked.seq_id)

    async def _ask(
        self,
        client: str,
        piece: work.ModelWork | WorkFailure,
        model: str = "",
        seq: int = 0,
        saves: str = "",
        ttl: int = 0,
    ) -> RouteAnswer:
        """Have the service do a request of a model. `model` and `seq`: of a failure, which has none of its own."""
        if not isinstance(piece, WorkFailure):
            model, seq = piece.model, piece.seq
        await self._service.ask(client, model, seq, piece, saves, ttl)
        return _future(model, seq)

    async def _retrieve(self, client: str, request: web.Request) -> RouteAnswer:
        name = (await read(request, requests.RetrieveFuture)).request_id
        if ":train:" not in name:
            return await self._sampling.result(client, name, POLL_SECONDS)
        model, _, number = name.rpartition(":")
        try:
            return await self._of_model(client, model, int(number))
        except UnknownError as error:
            why = f"{name} is not known (any more): {error.args[0]}"
            log.warning("%s", why)
            return await self._guard.missing(bodies.failed(WorkFailure(message=why, category="server")))

    async def _of_model(self, client: str, model: str, seq: int) -> RouteAnswer:
        book = self._service.book(client, model)
        self._service.hear(client, session_of(model))
        if book.line.is_lost(seq):
            return bodies.failed(WorkFailure(message=LOST, category="server"))
        entry = book.line.entries.get(seq)
        if not entry and not book.line.failed:
            raise UnknownError(f"there is no request {seq}")
        result = await book.result(seq, POLL_SECONDS)
        if result is None:
            return bodies.again(f"{model}:{seq}", "waiting for the ranks", self._service.away)
        if not entry:
            return bodies.of_request("", result, {})
        names = {"CreateModel": {"model_id": model}, "LoadState": {"model_id": model}}.get(entry.kind, {})
        if entry.saves:
            names = {"path" if "/" in entry.saves else "sampling_session_id": entry.saves}
        return bodies.of_request(entry.kind, result, names)


def _loading(model: str, seq: int, params: requests.LoadParams | WorkFailure) -> work.LoadState | WorkFailure:
    if isinstance(params, WorkFailure):
        return params
    return work.LoadState(model=model, seq=seq, path=params.path, optimizer=params.optimizer)


def _too_large(size: int) -> str:
    return (
        f"this call has at least {size} bytes, and {LARGEST_BODY} is the most. Clients make one call of several data when these are small: a datum "
        f"of its own is too large, so cut its sequence, or give it fewer targets for each token"
    )


def _too_many(body: bytes) -> str:
    """Why a pass is not read; empty: it is."""
    if count_fields(body, "ForwardBackwardRequest") <= MOST_FIELDS:
        return ""
    return f"this call has more than {MOST_FIELDS} fields of data and tensors: make several calls, or fewer chunks of each datum"


def _future(model: str, seq: int) -> RouteAnswer:
    return {"request_id": f"{model}:{seq}", "model_id": model}
