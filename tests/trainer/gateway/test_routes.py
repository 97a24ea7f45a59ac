"""What clients may ask for over HTTP, and what becomes of directories that samplers read. No ranks, no servers."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from aiohttp import ClientResponse
from aiohttp.test_utils import TestClient, TestServer

from rljob_api.spec.service import ServiceSpec
from rljob_trainer.gateway.keys import Keys
from rljob_trainer.gateway.samples import Samples
from rljob_trainer.gateway.servers import SamplingServers
from rljob_trainer.gateway.service import GatewayService
from rljob_trainer.gateway.wire.routes import API, Routes
from rljob_trainer.wire.service import CreateModel, Result, SaveForSampler, SaveState, decode_work, encode


class Desk:
    """A gateway and its only client. Ranks are not there: what they would write is an empty directory."""

    def __init__(self, service: GatewayService, client: TestClient[Any, Any]) -> None:
        self.service, self._client = service, client
        self.session = self.model = ""

    async def begin(self) -> None:
        self.session = (await (await self.post("create_session")).json())["session_id"]
        self.model = f"{self.session}:train:0"
        await self.service.create("anybody", CreateModel(model=self.model, seq=0, rank=4, seed=1))

    async def post(self, path: str, **body: Any) -> ClientResponse:
        return await self._client.post(API + path, json=body)

    async def bytes(self, path: str, body: bytes) -> ClientResponse:
        return await self._client.post(API + path, data=body)

    async def delete(self, path: str) -> ClientResponse:
        return await self._client.delete(API + path)

    async def save(self, seq: int, work: SaveState | SaveForSampler, name: str) -> Path:
        await self.service.ask("anybody", self.model, seq, work, name)
        written = Path()
        while piece := await self.service.desk.next("life", False, 0.0):
            done = decode_work(piece.work)
            if isinstance(done, SaveState | SaveForSampler):
                (written := Path(done.path)).mkdir(parents=True)
            await self.service.desk.done(piece.ticket, encode(Result()))
        return written

    async def sampler(self, number: int, path: str) -> ClientResponse:
        given = {"session_id": self.session, "sampling_session_seq_id": number, "model_path": path}
        return await self.post("create_sampling_session", **given)


@contextlib.asynccontextmanager
async def opened(root: Path) -> AsyncIterator[Desk]:
    service = GatewayService(ServiceSpec(), root)
    samples = Samples(SamplingServers("token").sample)
    app = Routes(service, samples, Keys(None), "base").app
    async with TestClient(TestServer(app)) as client:
        desk = Desk(service, client)
        await desk.begin()
        yield desk
        await samples.close()


def snapshot(model: str, seq: int) -> SaveForSampler:
    return SaveForSampler(model=model, seq=seq, path="")


async def test_nobody_samples_from_a_full_state_which_no_server_can_load(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        state, served = f"tinker://{desk.model}/weights/x", f"tinker://{desk.model}/sampler_weights/x"
        await desk.save(1, SaveState(model=desk.model, seq=1, path=""), state)
        await desk.save(2, snapshot(desk.model, 2), served)
        refused = await desk.sampler(0, state)
        assert refused.status == 400 and "is no snapshot for samplers" in (await refused.json())["detail"]
        assert (await desk.sampler(0, served)).status == 200


async def test_a_deleted_snapshot_remains_for_its_samplers_and_goes_with_their_session(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        directories = []
        for seq, name in ((1, "sampled"), (2, "unused")):
            directories.append(
                await desk.save(seq, snapshot(desk.model, seq), f"tinker://{desk.model}/sampler_weights/{name}")
            )
        await desk.sampler(0, f"tinker://{desk.model}/sampler_weights/sampled")
        for name in ("sampled", "unused"):
            assert (await desk.delete(f"training_runs/{desk.model}/checkpoints/sampler_weights/{name}")).status == 200
        assert [d.is_dir() for d in directories] == [True, False]
        await desk.post(f"sessions/{desk.session}/finish")
        assert [d.is_dir() for d in directories] == [False, False]


async def test_snapshots_without_a_path_go_with_their_session_and_those_with_one_remain(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        unnamed = await desk.save(1, snapshot(desk.model, 1), f"{desk.session}:sample:0")
        named = await desk.save(2, snapshot(desk.model, 2), f"tinker://{desk.model}/sampler_weights/kept")
        assert unnamed.is_dir() and unnamed != named
        await desk.post(f"sessions/{desk.session}/finish")
        assert (unnamed.is_dir(), named.is_dir()) == (False, True)


async def test_a_wrong_number_of_samples_fails_its_future_and_not_its_submission(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        await desk.post(
            "create_sampling_session", session_id=desk.session, sampling_session_seq_id=0, base_model="base"
        )
        prompt = {"chunks": [{"type": "encoded_text", "tokens": [1]}]}
        asked = {
            "sampling_session_id": f"{desk.session}:sample:0",
            "prompt": prompt,
            "sampling_params": {"max_tokens": 1},
        }
        for seq, count in enumerate((0, 1025, 2**60)):
            accepted = await desk.post("asample", **asked, seq_id=seq, num_samples=count)
            assert accepted.status == 200
            found = await desk.post("retrieve_future", request_id=(await accepted.json())["request_id"])
            assert f"num_samples is {count}; it must be from 1 to 1024" in await found.text()


async def test_a_body_that_is_nested_too_deeply_is_a_mistake_of_the_client(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        found = await desk.bytes("optim_step", b"[" * 100_000)
        assert found.status == 400 and "nested too deeply" in (await found.json())["detail"]
