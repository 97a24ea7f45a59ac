"""What clients may ask for over HTTP, and what becomes of directories that samplers read. No ranks, no servers."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientResponse, web
from aiohttp.test_utils import TestClient, TestServer
from tinker import types
from yarl import URL

from rljob_api.spec.service import ServiceSpec
from rljob_trainer.gateway.clients import Keys
from rljob_trainer.gateway.registry import sampler_name
from rljob_trainer.gateway.samples import REQUEST_BYTES, Samples
from rljob_trainer.gateway.servers import SamplingServers
from rljob_trainer.gateway.service import GatewayService
from rljob_trainer.gateway.wire.repeats import IDEMPOTENCY_KEY
from rljob_trainer.gateway.wire.routes import API, Routes
from rljob_trainer.wire.gateway import decode_work, encode
from rljob_trainer.wire.service import CreateModel, SaveForSampler, SaveState, WorkResult

SPEC = ServiceSpec()


class Desk:
    """A gateway and its only client. Ranks are not there: what they would write is an empty directory."""

    def __init__(self, service: GatewayService, samples: Samples, client: TestClient[Any, Any]) -> None:
        self.service, self.samples, self._client = service, samples, client
        self.session = self.model = ""

    async def begin(self, rank: int) -> None:
        self.session = await self.service.open_session("anybody")
        self.model = f"{self.session}:train:0"
        await self.service.create("anybody", CreateModel(model=self.model, seq=0, rank=rank, seed=1))

    async def post(self, path: str, /, **body: Any) -> ClientResponse:
        return await self._client.post(API + path, json=body, headers={"X-API-Key": "tml-anybody"})

    async def call(self, method: str, path: str, /, key: str = "", **body: Any) -> ClientResponse:
        """`key`: of idempotency."""
        headers = {IDEMPOTENCY_KEY: key} if key else {}
        return await self._client.request(method, API + path, json=body, headers=headers)

    @property
    def routes(self) -> list[web.AbstractRoute]:
        """Those of the gateway."""
        return list(self._client.app.router.routes())

    @property
    def url(self) -> str:
        return str(self._client.make_url("/"))

    async def bytes(self, path: str, body: bytes, encoding: str = "identity", key: str = "") -> ClientResponse:
        """`key`: of idempotency."""
        headers = {"Content-Encoding": encoding} | ({IDEMPOTENCY_KEY: key} if key else {})
        return await self._client.post(API + path, data=body, headers=headers)

    async def streamed(self, path: str, body: AsyncIterator[bytes], size: int) -> ClientResponse:
        """`size`: what the body is said to have."""
        return await self._client.post(API + path, data=body, headers={"Content-Length": str(size)})

    async def listed(self, path: str, client: str = "anybody", status: int = 200) -> Any:
        """A list, as a client gets it."""
        answer = await self._client.get(API + path, headers={"X-API-Key": f"tml-{client}"})
        assert answer.status == status, await answer.text()
        return await answer.json()

    async def put(self, path: str, **body: Any) -> ClientResponse:
        return await self._client.put(API + path, json=body)

    async def get(self, path: str, headers: dict[str, str]) -> ClientResponse:
        return await self._client.get(API + path, headers=headers)

    async def follow(self, url: str | URL) -> ClientResponse:
        """What is at a link to this gateway."""
        return await self._client.get(URL(url).relative())

    async def delete(self, path: str) -> ClientResponse:
        return await self._client.delete(API + path)

    async def save(self, seq: int, work: SaveState | SaveForSampler, name: str) -> Path:
        await self.service.ask("anybody", self.model, seq, work, name)
        written = Path()
        while piece := await self.service.desk.next("life", False, 0.0):
            done = decode_work(piece.work)
            if isinstance(done, SaveState | SaveForSampler):
                (written := Path(done.path)).mkdir(parents=True)
            await self.service.desk.done(piece.ticket, encode(WorkResult()))
        return written

    async def sample(self, number: int, **params: Any) -> str:
        """Ask for a sample; its name."""
        prompt = {"chunks": [{"type": "encoded_text", "tokens": [1]}]}
        asked = {"sampling_session_id": f"{self.session}:sample:{number}", "seq_id": 0, "prompt": prompt}
        accepted = await self.post("asample", **asked, sampling_params={"max_tokens": 1} | params)
        return str((await accepted.json())["request_id"])

    async def sampler(self, number: int, path: str) -> ClientResponse:
        given = {"session_id": self.session, "sampling_session_seq_id": number, "model_path": path}
        return await self.post("create_sampling_session", **given)


@contextlib.asynccontextmanager
async def opened(root: Path, keys: Path | None = None, spec: ServiceSpec = SPEC, rank: int = 4) -> AsyncIterator[Desk]:
    """`rank`: of the client's model."""
    service = GatewayService(spec, root)
    samples = Samples(SamplingServers("token").sample, service.clock)
    app = Routes(service, samples, Keys(keys), "base").app
    async with TestClient(TestServer(app)) as client:
        desk = Desk(service, samples, client)
        await desk.begin(rank)
        yield desk
        await samples.close()


async def test_a_session_hears_that_the_output_layer_is_not_trained_and_what_the_sdk_is_to_do(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        session = types.CreateSessionResponse(**await (await desk.post("create_session")).json())
        assert session.session_id and session.info_message
        assert "train_unembed is taken as false" in session.info_message
        flags = types.ClientConfigResponse(**await (await desk.post("client/config")).json())
        assert flags.proto_compress_fwdbwd and flags.sample_use_retrieve_futures
        later = types.ClientDynamicConfigResponse(**await (await desk.post("client/dynamic_config")).json())
        assert later.sample_cancel_enabled


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


async def test_lists_are_of_the_clients_own_and_are_given_in_parts(tmp_path: Path) -> None:
    (keys := tmp_path / "keys").mkdir()
    for client in ("anybody", "bob"):
        (keys / client).write_text(f"tml-{client}")

    async with opened(tmp_path / "service", keys) as desk:
        for seq in (1, 2, 3):
            path = f"tinker://{desk.model}/weights/{seq}"
            await desk.save(seq, SaveState(model=desk.model, seq=seq, path=""), path)
        empty = await desk.service.open_session("anybody")
        runs = await desk.listed("training_runs")
        assert [run["training_run_id"] for run in runs["training_runs"]] == [desk.model]
        assert runs["cursor"] == {"offset": 0, "limit": 20, "total_count": 1}
        last = await desk.listed("checkpoints?limit=2&offset=2")
        assert [found["checkpoint_id"] for found in last["checkpoints"]] == ["weights/1"], "the newest first"
        assert last["cursor"] == {"offset": 2, "limit": 2, "total_count": 3}
        assert await desk.listed("sessions") == {"sessions": [desk.session, empty]}
        assert await desk.listed("sessions?offset=1") == {"sessions": [empty]}
        assert await desk.listed(f"sessions/{desk.session}") == {"training_run_ids": [desk.model], "sampler_ids": []}
        assert await desk.listed("sessions?limit=0", status=400)
        assert await desk.listed("sessions", "bob") == {"sessions": []}
        assert (await desk.listed("training_runs", "bob"))["training_runs"] == []
        assert (await desk.listed("checkpoints", "bob"))["checkpoints"] == []
        await desk.listed(f"sessions/{desk.session}", "bob", status=404)
        await desk.listed(f"training_runs/{desk.model}", "bob", status=404)
        await desk.listed("sessions", "eve", status=401)
        await desk.service.close_session("anybody", desk.session)
        assert [run["training_run_id"] for run in (await desk.listed("training_runs"))["training_runs"]] == [desk.model]


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


async def test_of_snapshots_without_a_path_those_are_kept_that_were_made_or_sampled_from_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rljob_trainer.gateway.registry.KEPT_ADAPTERS", 2)
    async with opened(tmp_path) as desk:
        made = [await desk.save(n + 1, snapshot(desk.model, n + 1), f"{desk.session}:sample:{n}") for n in range(2)]
        await desk.sample(0)
        made.append(await desk.save(3, snapshot(desk.model, 3), f"{desk.session}:sample:2"))
        assert [directory.is_dir() for directory in made] == [True, False, True]
        found = await (await desk.post("retrieve_future", request_id=await desk.sample(1))).json()
        assert "only the last 2 of a model are" in found["error"] and found["category"] == "user"


async def test_a_session_that_ends_takes_its_samples_with_it_and_their_snapshots_go_once_no_server_reads_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path) as desk:
        read = await desk.save(1, snapshot(desk.model, 1), f"{desk.session}:sample:0")
        unread = await desk.save(2, snapshot(desk.model, 2), f"{desk.session}:sample:1")
        name = await desk.sample(0)
        polled = asyncio.create_task(desk.post("retrieve_future", request_id=name))
        assert desk.samples.waiting == 1
        await desk.post(f"sessions/{desk.session}/finish")
        assert (await polled).status == 410 and desk.samples.waiting == 0
        await desk.service.sweep()
        assert (read.is_dir(), unread.is_dir()) == (True, False)
        while piece := await desk.service.desk.next("another", False, 0.0):
            await desk.service.desk.done(piece.ticket, encode(WorkResult()))
        assert read.is_dir(), "ranks that begin anew do not mean that servers do"
        monkeypatch.setattr("rljob_trainer.gateway.samples.time.monotonic", lambda: 1e12)
        await desk.service.sweep()
        assert not read.is_dir()


async def test_a_snapshot_that_is_deleted_while_it_is_read_goes_when_its_sample_is_cancelled_and_not_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path) as desk:
        path = f"tinker://{desk.model}/sampler_weights/read"
        read = await desk.save(1, snapshot(desk.model, 1), path)
        await desk.sampler(0, path)
        name, names = await desk.sample(0), desk.service.names
        sampler = sampler_name(desk.session, 0)
        await names.sample(sampler, replace(names.samplers[sampler], directory="", replaced=True))
        assert (await desk.delete(f"training_runs/{desk.model}/checkpoints/sampler_weights/read")).status == 200
        await desk.service.sweep()
        assert read.is_dir()
        await desk.post("cancel_future", request_id=name)
        await desk.service.sweep()
        assert read.is_dir()
        monkeypatch.setattr("rljob_trainer.gateway.samples.time.monotonic", lambda: 1e12)
        await desk.service.sweep()
        assert not read.is_dir()


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


async def test_samples_with_more_values_than_are_answered_at_once_fail_their_future_alone(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        given = {"session_id": desk.session, "sampling_session_seq_id": 0, "base_model": "base"}
        await desk.post("create_sampling_session", **given)
        prompt = {"chunks": [{"type": "encoded_text", "tokens": [1]}]}
        asked = {"sampling_session_id": f"{desk.session}:sample:0", "prompt": prompt, "num_samples": 1024}
        for seq, (params, likeliest) in enumerate((({}, 0), ({"max_tokens": 1000}, 16), ({}, 4))):
            await desk.post("asample", **asked, seq_id=seq, sampling_params=params, topk_sample_logprobs=likeliest)
        assert desk.samples.waiting == 1, "4095 tokens of 1024 samples are taken"
        for seq, values in ((1, 1024 * 1000 * 17), (2, 1024 * 4095 * 5)):
            found = await desk.post("retrieve_future", request_id=f"{desk.session}:sample:0:{seq}")
            assert f"have {values} values, and 16777216 is the most" in (await found.json())["error"]


@pytest.mark.parametrize("call", ["optim_step", "asample", "retrieve_future", "not_served"])
async def test_a_body_of_json_is_bounded_so_that_nobody_waits_for_its_reading(tmp_path: Path, call: str) -> None:
    async with opened(tmp_path) as desk:
        found = await desk.bytes(call, b'{"session_id": "x", "a": [' + b"[]," * 2**20 + b"[]]}")
        assert found.status in (400, 404)
        assert call == "not_served" or "which is the most" in (await found.json())["detail"]


async def test_a_long_prompt_is_taken_and_a_client_that_has_too_much_is_refused_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path) as desk:
        given = {"session_id": desk.session, "sampling_session_seq_id": 0, "base_model": "base"}
        await desk.post("create_sampling_session", **given)
        prompt = {"chunks": [{"type": "encoded_text", "tokens": [150_000] * 4095}]}
        asked = {"sampling_session_id": f"{desk.session}:sample:0", "prompt": prompt}
        assert (await desk.post("asample", **asked, seq_id=0, sampling_params={"max_tokens": 1})).status == 200
        assert desk.samples.held == {"anybody": REQUEST_BYTES + 8 * 4095}
        monkeypatch.setattr("rljob_trainer.gateway.clients.MOST_OF_CLIENT", 50_000)
        assert (await desk.post("asample", **asked, seq_id=1, sampling_params={"max_tokens": 1})).status == 429
        await desk.post("cancel_future", request_id=f"{desk.session}:sample:0:0")
        assert desk.samples.held["anybody"] == 0
        assert (await desk.post("asample", **asked, seq_id=1, sampling_params={"max_tokens": 1})).status == 200


async def test_a_result_that_is_not_kept_any_more_fails_its_future_and_says_so(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        await desk.save(1, snapshot(desk.model, 1), f"{desk.session}:sample:0")
        line = desk.service.books[desk.model].line
        line.checkpointed(1, "somewhere")
        line.forget(1e12)
        found = await desk.post("retrieve_future", request_id=f"{desk.model}:1")
        assert found.status == 200 and "does not keep the result" in (await found.json())["error"]
        never = await (await desk.post("retrieve_future", request_id=f"{desk.model}:9")).json()
        assert never["error"] == f"{desk.model}:9 is not known (any more): there is no request 9"


async def test_a_call_that_is_not_served_fails_its_future_and_the_next_request_is_executed(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        accepted = await desk.post("a_call_of_tomorrow", model_id=desk.model, seq_id=1, path="a")
        assert accepted.status == 200
        assert (await desk.save(2, snapshot(desk.model, 2), f"{desk.session}:sample:0")).is_dir()
        found = await (await desk.post("retrieve_future", request_id=(await accepted.json())["request_id"])).json()
        assert found == {"error": "a_call_of_tomorrow is not served", "category": "user"}
        unknown = await desk.post("create_custom_loss", session_id=desk.session, name="mine")
        assert (unknown.status, await unknown.json()) == (404, {"detail": "create_custom_loss is not served"})
