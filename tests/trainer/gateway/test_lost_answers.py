"""Answers that are lost after the gateway has done what was asked: the SDK asks again, and nothing is done twice."""

import asyncio
import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
import tinker
from aiohttp import web
from tinker import types

from rljob_trainer.gateway.wire.routes import API
from rljob_trainer.machine import free_port
from trainer.gateway.process import BASE, GatewayProcess, Surroundings

pytestmark = pytest.mark.slow

SECONDS = 120
MADE = {
    "checkpoints",
    "client/config",
    "create_session",
    "create_model",
    "get_info",
    "forward_backward",
    "optim_step",
    "save_weights",
    "load_weights",
    "save_weights_for_sampler",
    "create_sampling_session",
    "asample",
    "retrieve_future",
    "retrieve_futures",
    "sessions",
    "sessions/SESSION/finish",
    "training_runs/MODEL/checkpoints/weights/a",
    "training_runs/MODEL/checkpoints/weights/a/ttl",
    "weights_info",
}
"""Calls of the script below."""


class LosingProxy:
    """Between a script and the gateway: of each call the first answer is lost, with its connection."""

    def __init__(self, url: str) -> None:
        self._gateway, self._port, self.answered = url, free_port(), Counter[str]()
        self._loop, self._ended = asyncio.new_event_loop(), asyncio.Event()

    @contextmanager
    def running(self) -> Iterator[str]:
        thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),))
        thread.start()
        try:
            yield f"http://127.0.0.1:{self._port}"
        finally:
            self._loop.call_soon_threadsafe(self._ended.set)
            thread.join()

    async def _run(self) -> None:
        app = web.Application(handler_args={"auto_decompress": False})
        app.router.add_route("*", API + "{call:.*}", self._pass_on)
        runner = web.AppRunner(app, shutdown_timeout=1.0)
        async with aiohttp.ClientSession(self._gateway, auto_decompress=False) as self._session:
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", self._port).start()
            await self._ended.wait()
            await runner.cleanup()

    async def _pass_on(self, request: web.Request) -> web.Response:
        headers = {name: value for name, value in request.headers.items() if name.lower() != "host"}
        body = await request.read()
        async with self._session.request(request.method, request.path_qs, data=body, headers=headers) as found:
            answer = web.Response(status=found.status, body=await found.read(), content_type=found.content_type)
        call = re.sub("[0-9a-f]{16}", "SESSION", request.match_info["call"]).replace("SESSION:train:0", "MODEL")
        self.answered[call] += 1
        if self.answered[call] == 1:
            assert request.transport
            request.transport.abort()
        return answer


def check_lists(rest: Any, state: str) -> None:
    """What there is after the calls of a script, and its deletion."""
    assert len(rest.list_sessions().result(timeout=SECONDS).sessions) == 1
    assert rest.get_weights_info_by_tinker_path(state).result(timeout=SECONDS).lora_rank == 4
    rest.set_checkpoint_ttl_from_tinker_path(state, 3600).result(timeout=SECONDS)
    (listed,) = rest.list_user_checkpoints().result(timeout=SECONDS).checkpoints
    assert listed.tinker_path == state and listed.expires_at
    rest.delete_checkpoint_from_tinker_path(state).result(timeout=SECONDS)
    assert not rest.list_user_checkpoints().result(timeout=SECONDS).checkpoints


def test_a_script_hears_nothing_of_lost_answers_and_nothing_is_done_twice(tmp_path: Path) -> None:
    inputs = {"target_tokens": np.array([1, 2]), "weights": np.ones(2, np.float32)}
    columns = {name: types.TensorData.from_numpy(values) for name, values in inputs.items()}
    datum = types.Datum(model_input=types.ModelInput.from_ints([7, 1]), loss_fn_inputs=columns)
    (gateway := GatewayProcess(tmp_path)).start()
    proxy = LosingProxy(gateway.url)
    with Surroundings(gateway, tmp_path).running() as others, proxy.running() as url:
        others.call(others.may_work.set)
        others.call(others.may_sample.set)
        with tinker.ServiceClient(base_url=url, api_key="tml-any") as service:
            training = service.create_lora_training_client(BASE, rank=4, train_unembed=False).result(timeout=SECONDS)
            training.get_info()
            output = training.forward_backward([datum], "cross_entropy").result(timeout=SECONDS)
            assert output.loss_fn_outputs[0]["logprobs"].to_numpy().tolist() == [7, 7]
            training.optim_step(types.AdamParams(learning_rate=1e-4)).result(timeout=SECONDS)
            state = training.save_state("a").result(timeout=SECONDS).path
            service.create_training_client_from_state(state)
            training.save_weights_and_get_sampling_client().result(timeout=SECONDS)
            sampler = service.create_sampling_client(base_model=BASE)
            once = types.SamplingParams(max_tokens=1)
            found = sampler.sample(types.ModelInput.from_ints([9]), 1, once).result(timeout=SECONDS)
            assert found.sequences[0].tokens == [9]
            check_lists(service.create_rest_client(), state)
    gateway.kill()
    assert {call for call, answers in proxy.answered.items() if answers > 1} >= MADE
    assert others.executed == {1: 1} and others.sampled == {9: 1}
    assert others.done["OptimStep"] == 1 and others.done["SaveState"] == 1 and others.done["CreateModel"] == 2
