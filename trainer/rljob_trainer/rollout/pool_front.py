"""The ASGI middleware in front of a pool's server: its model is frozen, so that all that have the token may ask all that vLLM answers."""

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Send

from rljob_trainer.rollout.guard import Guard
from rljob_trainer.weights import protocol


class PoolFront(Guard):
    """Token and health; every other route is vLLM's own."""

    async def _admitted(self, request: Request, send: Send) -> None:
        route = request.method, request.url.path
        if route == ("GET", protocol.HEALTH):
            answer = await self._health(request, updating=False)
            await answer(request.scope, request.receive, send)
        elif route == ("GET", protocol.STATE):
            await JSONResponse({})(request.scope, request.receive, send)
        else:
            await self._app(request.scope, request.receive, send)
