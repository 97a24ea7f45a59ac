"""The client of one rollout server: token ids in, token ids and log-probabilities out. No torch here."""

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import aiohttp
import numpy as np

from rljob_api.protocol import RolloutEndpoint
from rljob_api.spec.common import Sampling
from rljob_trainer.wire.batch import Array
from rljob_trainer.wire.completions import MEDIA_TYPE, decode
from rljob_trainer.wire.images import Placed
from rljob_trainer.wire.rollout_server import (
    Parsed,
    ParseRequest,
    SampleAnswer,
    SampleRequest,
    UnreadError,
    encode_images,
    pack_tokens,
)
from rljob_trainer.wire.trajectory import Experts, Floats, Ints, Segment, sampled
from rljob_trainer.wire.weights.protocol import (
    ATTEMPT_HEADER,
    GENERATE,
    INTERRUPT,
    PARSE,
    SAMPLE,
    STATE,
    STEP_HEADER,
    AttemptSuperseded,
)

BodyReader = Callable[[aiohttp.ClientResponse], Awaitable[Any]]
CONNECT_SECONDS = 30.0
PROBE_SECONDS = 10.0
"""Time limit of requests that cost the server nothing."""
PARSE_SECONDS = 900.0
"""A server limits the reading itself (parser_process.py): longer than the start of its process, and than many turns that it has to give up before."""


class ReplicaLost(RuntimeError):
    """The replica did not answer the request; another one should be asked."""


class ReplicaUnreachable(ReplicaLost):
    """Nothing listens at its address, or nothing answers there: the request has not reached it."""


class Unauthorized(ReplicaLost):
    """401: the replica has another token. The Secret has changed since one of the two pods started, or the address belongs to another pod now."""


class RequestRefusedError(ValueError):
    """The server says that the request is invalid; asking another one cannot help."""

    def __init__(self, reason: str, code: str = ""):
        """`code`: CONTEXT_TOO_LONG (wire/rollout_server.py), where the server says so."""
        super().__init__(reason)
        self.code = code


FinishReason = Literal["stop", "length", "abort"]
"""`abort`: the response is incomplete."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A request for `n` responses to one prompt."""

    tokens: Sequence[int] | Ints
    """Tokens of the prompt, followed by those generated so far."""
    n: int
    sampling: Sampling
    seed: int
    """Seed of response 0; vLLM adds i for response i."""
    images: Sequence[Placed] = ()
    """Images in the prompt."""

    def body(self) -> dict[str, Any]:
        """The request as JSON."""
        fields = {"prompt": pack_tokens(self.tokens), "n": self.n, "seed": self.seed}
        images = {"images": encode_images(self.images)} if self.images else {}
        return fields | self.sampling.model_dump() | images


@dataclass(frozen=True, slots=True)
class Generation:
    """One response."""

    tokens: Ints
    log_probs: Floats
    """Of each token, under the distribution from which it was sampled (temperature applied)."""
    finish_reason: FinishReason
    policy_step: int
    """Step of the policy that was served when the request came."""
    routed_experts: Experts | None = None
    """For prompt and response; see Trajectory.routed_experts."""
    later: Sequence[tuple[int, int]] = ()
    """See Completion.later."""
    guesses: tuple[int, int] = (0, 0)
    """See Completion.guesses."""

    @property
    def segments(self) -> list[Segment]:
        """A segment for each policy that generated some of it."""
        starts = [(0, self.policy_step), *self.later]
        ends = [begin for begin, _ in self.later] + [len(self.tokens)]
        parts = [(slice(begin, end), step) for (begin, step), end in zip(starts, ends, strict=True) if begin < end]
        return [sampled(self.tokens[at], self.log_probs[at], step) for at, step in parts]


class RolloutClient:
    """The client of one replica for one attempt. An asynchronous context manager."""

    def __init__(self, endpoint: RolloutEndpoint, token: str, attempt: int) -> None:
        self.endpoint = endpoint
        self._attempt = attempt
        self._headers = {"Authorization": f"Bearer {token}", ATTEMPT_HEADER: str(attempt)}
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)
        # no keep-alive: a connection that the server closes just as it is reused would look like a lost replica
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        self._session = aiohttp.ClientSession(
            self.endpoint.url, headers=self._headers, timeout=timeout, connector=connector
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def generate(self, request: GenerationRequest) -> list[Generation]:
        """The responses by index. There is no time limit; cancelling ends the generation on the server.

        Raises RequestRefusedError (400), AttemptSuperseded (409), ReplicaLost (any other status, a lost connection, a weight update meanwhile).
        """
        sent = await asyncio.to_thread(request.body) if request.images else request.body()
        body, headers = await self._call("POST", GENERATE, sent, read=_bytes)
        if STEP_HEADER not in headers:
            raise ReplicaLost(f"{self.endpoint.pod}: its answer names no policy")
        return _generations(body, request.n, int(headers[STEP_HEADER]))

    async def sample(self, request: SampleRequest) -> SampleAnswer:
        """Samples for a client of a service. Otherwise like `generate`."""
        answer = SampleAnswer.read((await self._call("POST", SAMPLE, request.body()))[0])
        if any(sample.finish_reason == "abort" for sample in answer.samples):
            raise ReplicaLost(f"{self.endpoint.pod}: it ended the request early")
        return answer

    async def parse(self, request: ParseRequest) -> Parsed:
        """What a response says. Raises as `generate`, ParserUnusableError, and UnreadError, also after PARSE_SECONDS."""
        try:
            async with asyncio.timeout(PARSE_SECONDS):
                body, _ = await self._call("POST", PARSE, request.body())
        except TimeoutError as error:
            raise UnreadError(f"{self.endpoint.pod} took longer than {PARSE_SECONDS:g} s") from error
        return Parsed.of(body)

    async def interrupt(self) -> None:
        """Have all requests answered with what has been generated so far. Raises as `generate`; ReplicaLost also after PROBE_SECONDS."""
        await self._call("POST", INTERRUPT, {}, PROBE_SECONDS)

    async def state(self) -> dict[str, Any]:
        """The server's state: attempt, policy_step (None: it serves nothing), digest, cache_tokens (slots.LoadedServer). Raises as `generate`, and
        ReplicaLost after PROBE_SECONDS."""
        return (await self._call("GET", STATE, None, PROBE_SECONDS))[0]

    async def _call(
        self,
        method: str,
        path: str,
        body: Any,
        seconds: float | None = None,
        read: BodyReader = aiohttp.ClientResponse.json,
    ) -> tuple[Any, Any]:
        assert self._session is not None
        if self._session.closed:  # meanwhile; aiohttp would raise RuntimeError
            raise ReplicaLost(f"{self.endpoint.pod}: dismissed")
        try:
            timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=CONNECT_SECONDS)
            async with self._session.request(method, path, json=body, timeout=timeout) as response:
                if response.status == 200:
                    return await read(response), response.headers
                text = await response.text()
                if response.status == 409:
                    raise AttemptSuperseded(self._attempt, int((await response.json())["attempt"]))
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise ReplicaUnreachable(f"{self.endpoint.pod}: {type(error).__name__}: {error}") from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ReplicaLost(f"{self.endpoint.pod}: {type(error).__name__}: {error}") from error
        said = f"{self.endpoint.pod}: {response.status}: {text[:500]}"
        if response.status == 400:
            raise RequestRefusedError(said, _code(text))
        if response.status == 401:
            raise Unauthorized(f"{self.endpoint.pod} refuses this job's token (401): {text[:200]}")
        raise ReplicaLost(said)  # also 404: the address may belong to another pod now


async def answers(endpoint: RolloutEndpoint, token: str, attempt: int) -> bool:
    """Whether the server answers. If it does, it knows of this attempt from now on and refuses lower ones."""
    async with RolloutClient(endpoint, token, attempt) as client:
        try:
            await client.state()
        except AttemptSuperseded:
            return True
        except ReplicaLost:
            return False
    return True


async def _bytes(response: aiohttp.ClientResponse) -> Array:
    """The body, in one piece of memory: a join of the pieces that come would be a long turn of the event loop. Raises aiohttp.ClientError."""
    if response.content_type != MEDIA_TYPE or response.content_length is None:
        raise aiohttp.ClientPayloadError(f"an answer of type {response.content_type}")
    body, at = np.empty(response.content_length, np.uint8), 0
    async for piece in response.content.iter_any():
        body[at : at + len(piece)] = np.frombuffer(piece, np.uint8)
        at += len(piece)
    return body


def _code(text: str) -> str:
    """Of an error that the server answered; empty where it names none."""
    with contextlib.suppress(ValueError, AttributeError):
        return str(json.loads(text).get("code", ""))
    return ""


def _generations(body: Array, n: int, policy_step: int) -> list[Generation]:
    responses = decode(body)
    if len(responses) != n or any(r.finish_reason not in ("stop", "length", "abort") for r in responses):
        raise ReplicaLost(f"{len(responses)} of {n} responses, finished by {[r.finish_reason for r in responses]}")
    return [Generation(*r[:3], policy_step, r.routed_experts, r.later, r.guesses) for r in responses]  # type: ignore[arg-type]
