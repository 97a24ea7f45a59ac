"""What is around every call of a client: its key, and the statuses of what goes wrong, each of which has the SDK do something else."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial

from aiohttp import web
from pydantic import ValidationError

from rljob_api.type_errors import first_problem
from rljob_trainer.gateway.clients import BusyError, Keys
from rljob_trainer.gateway.files import GatewaySuperseded
from rljob_trainer.gateway.service import GatewayService, UnknownError
from rljob_trainer.gateway.wire import bodies
from rljob_trainer.gateway.wire.handlers import RouteAnswer
from rljob_trainer.gateway.wire.repeats import AnsweredCalls

GONE = {"session_heartbeat": 410, "retrieve_future": 410}
"""Statuses by which clients hear that a session has ended, and that a sample has to be asked for again. Of other things that are not there: 404."""
HOLD, LATER = 402, 429
"""Statuses by which a client sends a request again: for LONGEST_HOLD, while its user reads the reason once a minute; or, without a word, samples for
ever and all else for five minutes, after which its script ends."""
LONGEST_HOLD = 86400
"""Seconds."""
HELD = (
    "forward_backward",
    "optim_step",
    "save_weights",
    "save_weights_for_sampler",
    "save_weights_external",
    "load_weights",
)
"""Requests of models, for which there may be no room for hours."""
ONCE = (*HELD, "create_session", "create_model", "create_sampling_session")
"""Posts that change something, and that a client repeats with their keys."""

RouteHandler = Callable[[str, web.Request], Awaitable[RouteAnswer]]
"""Of the client's name and the request."""
log = logging.getLogger(__name__)


class CallGuard:
    """Of one service."""

    def __init__(self, service: GatewayService, keys: Keys) -> None:
        self._service, self._keys, self._answered = service, keys, AnsweredCalls()

    def around(self, handler: RouteHandler, path: str = "") -> Callable[[web.Request], Awaitable[web.Response]]:
        """`path`: of the call."""
        busy = HOLD if path in HELD else LATER

        async def answer(request: web.Request) -> web.Response:
            try:
                said = await self._said(handler, request, path)
            except ValidationError as error:
                return bodies.refused(400, first_problem(error))
            except ValueError as error:
                return bodies.refused(400, str(error))
            except BusyError as error:
                return bodies.refused(busy, str(error))
            except GatewaySuperseded as error:
                return bodies.refused(503, str(error))
            except ConnectionError:
                raise
            except OSError as error:
                log.warning("%s: a volume: %s", path, error)
                return bodies.refused(busy, f"a volume of the service does not work now: {error.strerror or error}")
            return said if isinstance(said, web.Response) else web.json_response(said)

        return answer

    async def _said(self, handler: RouteHandler, request: web.Request, path: str) -> RouteAnswer:
        client = self._keys.client(request.headers.get("X-API-Key", ""))
        if client is None:
            return bodies.refused(401, "this service does not know the API key")
        try:
            if request.method in ("PUT", "DELETE") or path in ONCE:
                return await self._answered.once(client, request, partial(handler, client, request))
            return await handler(client, request)
        except UnknownError as error:
            return await self.missing(bodies.refused(GONE.get(path, 404), str(error.args[0])))

    async def missing(self, answer: web.Response) -> web.Response:
        """The answer about what is not there. Raises GatewaySuperseded: a former gateway does not know what has begun since; OSError."""
        await asyncio.to_thread(self._service.claim.check)
        return answer
