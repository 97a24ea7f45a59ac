"""What nobody waits for any more is not generated to its end."""

import asyncio

import aiohttp
import numpy as np

from rljob_api.spec.common import Sampling
from rljob_trainer.agents.endpoint import Endpoint
from rljob_trainer.agents.session import Response
from rljob_trainer.wire.rollout_client import RequestRefusedError
from rljob_trainer.wire.trajectory import Ints, Segment
from trainer.agents.endpoint import posted, served


async def never(given_up: asyncio.Event) -> Response:
    """A response that does not come. `given_up` is set when nobody waits for it any more."""
    try:
        await asyncio.Event().wait()
    finally:
        given_up.set()
    raise AssertionError


async def test_what_a_client_no_longer_waits_for_is_not_generated_to_its_end_and_is_no_answer() -> None:
    """As a client library's time limit ends a request, and asks again."""
    began, given_up = asyncio.Event(), asyncio.Event()

    async def sample(context: Ints, sampling: Sampling, turn: int) -> Response:
        if turn > 0:
            return (Segment(np.array([5], np.int32), "policy", np.zeros(1, np.float32), 0),), False
        began.set()
        return await never(given_up)

    async with served(()) as (session, policy):
        session._sample = sample
        url, body = f"{policy.base_url}/chat/completions", {"messages": [{"role": "user", "content": "1+2="}]}
        first = asyncio.create_task(posted(url, body))
        await asyncio.wait_for(began.wait(), 10)
        first.cancel()
        await asyncio.wait_for(given_up.wait(), 10)
        async with aiohttp.ClientSession() as client, client.post(url, json=body) as response:
            assert response.status == 200
        rollout = session.rollout([(await policy.trajectory()).tokens])
    assert rollout is not None and (rollout.turns, rollout.left_out) == (1, 0)


async def test_what_a_trajectory_that_has_ended_still_asks_for_is_not_generated_to_its_end() -> None:
    began, given_up = asyncio.Event(), asyncio.Event()

    async def sample(context: Ints, sampling: Sampling, turn: int) -> Response:
        began.set()
        return await never(given_up)

    async with served(()) as (session, _):
        session._sample = sample
        endpoint = Endpoint()
        await endpoint.start()
        url, body = endpoint.open(session), {"messages": [{"role": "user", "content": "1+2="}]}
        asking = asyncio.create_task(posted(f"{url}/chat/completions", body))
        await asyncio.wait_for(began.wait(), 10)
        endpoint.close(url)
        await asyncio.wait_for(given_up.wait(), 10)
        status, error = await asking
        await endpoint.stop()
    assert status == 404 and "has ended" in error["message"]


async def test_a_choice_that_fails_ends_the_others() -> None:
    given_up = asyncio.Event()

    async def sample(context: Ints, sampling: Sampling, turn: int) -> Response:
        if turn > 0:
            raise RequestRefusedError("no")
        return await never(given_up)

    async with served(()) as (session, policy):
        session._sample = sample
        body = {"messages": [{"role": "user", "content": "1+2="}], "n": 2}
        status, error = await posted(f"{policy.base_url}/chat/completions", body)
        assert (status, error["message"]) == (400, "no") and given_up.is_set()
