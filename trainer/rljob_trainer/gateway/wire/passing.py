"""A connection keeps its last request and its last answer until the next ones come. Clients keep thousands open, so that neither may be large."""

from aiohttp import web
from aiohttp.typedefs import Handler

from rljob_trainer.gateway.wire.requests import FIELDS


class PassingAnswer(web.Response):
    """It has no body any more once it is sent."""

    @staticmethod
    def of(answer: web.Response) -> "PassingAnswer":
        return PassingAnswer(body=answer.body, status=answer.status, headers=answer.headers)

    async def write_eof(self, data: bytes = b"") -> None:
        await super().write_eof(data)
        self.body = None


@web.middleware
async def passing(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Have a connection keep nothing of a call but its headers."""
    try:
        answer = await handler(request)
    finally:
        request.pop(FIELDS, None)
    return PassingAnswer.of(answer) if type(answer) is web.Response else answer
