"""The clients' HTTP that is about samplers and samples."""

from aiohttp import web

from rljob_trainer.gateway.samples import Samples
from rljob_trainer.gateway.service import GatewayService, seed_of
from rljob_trainer.gateway.wire import answers, requests
from rljob_trainer.gateway.wire.listing import RouteAnswer
from rljob_trainer.gateway.wire.requests import SAMPLER_WEIGHTS, read, read_rest
from rljob_trainer.wire.service import Failure


class SamplingRoutes:
    """Handlers, of the client's name and the request. Raise UnknownError, BusyError."""

    def __init__(self, service: GatewayService, samples: Samples, base_model: str) -> None:
        self._service, self._samples, self._base = service, samples, base_model
        service.sampling = samples
        self._longest = service.spec.max_tokens

    async def create(self, client: str, request: web.Request) -> RouteAnswer:
        asked = await read(request, requests.CreateSamplingSession)
        if asked.model_path is None and asked.base_model != self._base:
            return answers.refused(400, f"this service samples from {self._base}, not {asked.base_model}")
        if asked.model_path and f"/{SAMPLER_WEIGHTS}/" not in asked.model_path:
            why = f"{asked.model_path} is no snapshot for samplers: save one with save_weights_for_sampler"
            return answers.refused(400, why)
        name = sampler_name(asked.session_id, asked.sampling_session_seq_id)
        await self._service.sample_from(client, name, asked.model_path or "")
        return {"sampling_session_id": name, "type": "create_sampling_session"}

    async def describe(self, client: str, request: web.Request) -> RouteAnswer:
        name = request.match_info["sampler"]
        path = self._service.sampler(client, name).path
        return {"sampler_id": name, "base_model": self._base, "model_path": path or None}

    async def sample(self, client: str, request: web.Request) -> RouteAnswer:
        most = requests.MOST_JSON + requests.MOST_OF_TOKEN * self._longest
        with self._service.memory.taking(client, request.content_length or most):
            return await self._sample(client, request, most)

    async def _sample(self, client: str, request: web.Request, most: int) -> RouteAnswer:
        asked = await read(request, requests.Asample, most)
        name = f"{asked.sampling_session_id}:{asked.seq_id}"
        params = await read_rest(request, requests.SampleParams)
        sampler = self._service.sampler(client, asked.sampling_session_id)  # last: its session may end meanwhile
        seed = seed_of(name)
        found = params if isinstance(params, Failure) else params.request(asked.num_samples, seed, self._longest)
        asked_for = found if isinstance(found, Failure) else sampler.of(found, self._service.files.root)
        self._samples.ask(client, name, asked_for, sampler.directory)
        samples = 0 if isinstance(found, Failure) else asked.num_samples
        return {"request_id": name, "sample_sequence_ids": [f"{name}:{i}" for i in range(samples)]}

    async def cancel(self, client: str, request: web.Request) -> RouteAnswer:
        self._samples.cancel(client, (await read(request, requests.RetrieveFuture)).request_id)
        return {}

    async def result(self, client: str, name: str, seconds: float) -> web.Response:
        """Of a request for samples. Raises UnknownError."""
        found = await self._samples.result(client, name, seconds)
        if found is None:
            return answers.again(name, "waiting for a server")
        return answers.failed(found) if isinstance(found, Failure) else answers.of_samples(found)


def sampler_name(session: str, number: int) -> str:
    return f"{session}:sample:{number}"
