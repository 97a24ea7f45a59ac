"""The parse route. Answers: 200 with Parsed, {"unusable": why} where the parser does not fit the model, or {"unread": why} where it took too long;
400 for an invalid request; 500 where the process that reads cannot be started.
"""

import json
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse

from rljob_trainer.server.guard import error
from rljob_trainer.server.parser_process import TurnReader
from rljob_trainer.workers.process import WorkerLost


class Escaped(JSONResponse):
    """In ASCII: the arguments of a call may hold half a character, which UTF-8 does not have."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content).encode()


async def parse(request: Request) -> JSONResponse:
    """The response of the route."""
    try:
        body = await request.json()
    except ValueError as problem:
        return error(400, f"{type(problem).__name__}: {problem}")
    try:
        found = await _reader(request.app.state).read(body)
    except WorkerLost as lost:
        return error(500, f"the process that reads responses: {lost}")
    return error(400, found["refused"]) if "refused" in found else Escaped(found)


def _reader(state: Any) -> TurnReader:
    """Of this server: made for its first request."""
    if not hasattr(state, "turn_reader"):
        model = state.engine_client.model_config
        state.turn_reader = TurnReader.of(model.model, model.trust_remote_code, model.tokenizer_mode)
    reader: TurnReader = state.turn_reader
    return reader
