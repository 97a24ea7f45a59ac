"""Token ids in, token ids and log-probabilities out. No torch here."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import aiohttp
import numpy as np

from rljob_api.protocol import RolloutEndpoint
from rljob_api.spec.common import Sampling
from rljob_trainer.images import Placed
from rljob_trainer.rollout.wire import decode, encode_images
from rljob_trainer.trajectory import Experts, Floats, Ints
from rljob_trainer.weights.protocol import ATTEMPT_HEADER, GENERATE, INTERRUPT, STATE, STEP_HEADER, AttemptSuperseded

CONNECT_SECONDS = 30.0
PROBE_SECONDS = 10.0
"""Longest wait for an answer to a question that costs the server nothing."""


class ReplicaLost(RuntimeError):
    """This replica did not answer the request and may not answer another: ask elsewhere."""


class Unauthorized(ReplicaLost):
    """401: the replica holds another token. The Secret changed after one of the two pods had started, or the address is somebody else's by now."""


class RequestRefusedError(ValueError):
    """The server says that the request is wrong: asking elsewhere cannot help."""


FinishReason = Literal["stop", "length", "abort"]
"""`abort`: this is not all of it."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """What a server is asked for: `n` responses to one prompt."""

    tokens: Sequence[int] | Ints
    """Of the prompt, and of what was generated behind it so far."""
    n: int
    sampling: Sampling
    seed: int
    """Of the first response; vLLM gives response i the seed plus i."""
    images: Sequence[Placed] = ()
    """In the prompt."""

    def body(self) -> dict[str, Any]:
        """As JSON."""
        fields = {"prompt": np.asarray(self.tokens).tolist(), "n": self.n, "seed": self.seed}
        images = {"images": encode_images(self.images)} if self.images else {}
        return fields | self.sampling.model_dump() | images


@dataclass(frozen=True, slots=True)
class Generation:
    """One response."""

    tokens: Ints
    log_probs: Floats
    """Of each token, under the distribution it was drawn from (temperature applied)."""
    finish_reason: FinishReason
    policy_step: int
    """Of the policy that generated it."""
    routed_experts: Experts | None = None
    """Of prompt and response; see Trajectory.routed_experts."""


class RolloutClient:
    """One replica, as one attempt sees it. Use as an asynchronous context manager."""

    def __init__(self, endpoint: RolloutEndpoint, token: str, attempt: int) -> None:
        self.endpoint = endpoint
        self._attempt = attempt
        self._headers = {"Authorization": f"Bearer {token}", ATTEMPT_HEADER: str(attempt)}
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)
        # A kept connection that the server closes as we reuse it looks like a lost replica.
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        self._session = aiohttp.ClientSession(
            self.endpoint.url, headers=self._headers, timeout=timeout, connector=connector
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def generate(self, request: GenerationRequest) -> list[Generation]:
        """The responses in order of their index. Waits as long as the server takes; cancelling ends the generation there.

        Raises RequestRefusedError (400), AttemptSuperseded (409), ReplicaLost (any other status, connection, an update of its weights).
        """
        sent = await asyncio.to_thread(request.body) if request.images else request.body()
        body, headers = await self._call("POST", GENERATE, sent)
        if STEP_HEADER not in headers:
            raise ReplicaLost(f"{self.endpoint.pod}: another policy came while it generated")
        return _generations(body, request.n, int(headers[STEP_HEADER]))

    async def interrupt(self) -> None:
        """Have everything that the server generates answered as it is. Raises as generate, ReplicaLost also after PROBE_SECONDS."""
        await self._call("POST", INTERRUPT, {}, PROBE_SECONDS)

    async def state(self) -> dict[str, Any]:
        """What the server serves: attempt, policy_step (null: nothing), digest. Raises as generate, ReplicaLost also after PROBE_SECONDS."""
        return (await self._call("GET", STATE, None, PROBE_SECONDS))[0]

    async def _call(self, method: str, path: str, body: Any, seconds: float | None = None) -> tuple[Any, Any]:
        assert self._session is not None
        if self._session.closed:  # since the replica was chosen; aiohttp would call that our mistake
            raise ReplicaLost(f"{self.endpoint.pod}: dismissed")
        try:
            timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=CONNECT_SECONDS)
            async with self._session.request(method, path, json=body, timeout=timeout) as response:
                if response.status == 200:
                    return await response.json(), response.headers
                text = await response.text()
                if response.status == 409:
                    raise AttemptSuperseded(self._attempt, int((await response.json())["attempt"]))
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ReplicaLost(f"{self.endpoint.pod}: {type(error).__name__}: {error}") from error
        said = f"{self.endpoint.pod}: {response.status}: {text[:500]}"
        if response.status == 400:
            raise RequestRefusedError(said)
        if response.status == 401:
            raise Unauthorized(f"{self.endpoint.pod} refuses this job's token (401): {text[:200]}")
        raise ReplicaLost(said)  # also 404: the address of a pod that is gone may be somebody else's


async def answers(endpoint: RolloutEndpoint, token: str, attempt: int) -> bool:
    """Whether the server is there. It has heard of the attempt then and refuses lower ones, unless it knows a higher one already."""
    async with RolloutClient(endpoint, token, attempt) as client:
        try:
            await client.state()
        except AttemptSuperseded:
            return True
        except ReplicaLost:
            return False
    return True


def _generations(body: Any, n: int, policy_step: int) -> list[Generation]:
    found = decode(body)
    if len(found) != n or any(drawn.finish_reason not in ("stop", "length", "abort") for drawn in found):
        raise ReplicaLost(f"{len(found)} of {n} responses, finished by {[drawn.finish_reason for drawn in found]}")
    return [Generation(*drawn[:3], policy_step, drawn.routed_experts) for drawn in found]  # type: ignore[arg-type]
