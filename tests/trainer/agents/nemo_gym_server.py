"""A resources server of the library NeMo Gym, in a process of its own: `python nemo_gym_server.py PORT`. Its counter is that of the library's
example_session_state_mgmt; some tools make it misbehave."""

import sys
from typing import Any
from unittest.mock import MagicMock

import uvicorn
from fastapi import FastAPI, Request
from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseSeedSessionRequest,
    BaseSeedSessionResponse,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)
from nemo_gym.server_utils import SESSION_ID_KEY, ServerClient
from pydantic import BaseModel, Field


class Seed(BaseSeedSessionRequest):
    initial_count: int


class Increment(BaseModel):
    count: int


class Verify(BaseVerifyRequest):
    expected_count: int


class Verified(BaseVerifyResponse):
    final_count: int


class Counter(SimpleResourcesServer):
    config: BaseResourcesServerConfig
    counters: dict[str, int] = Field(default_factory=dict)

    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        app.post("/increment_counter")(self.increment)
        app.post("/get_counter_value")(self.value)
        return app

    async def seed_session(self, request: Request, body: Seed) -> BaseSeedSessionResponse:
        self.counters[request.session[SESSION_ID_KEY]] = body.initial_count
        return BaseSeedSessionResponse()

    async def increment(self, request: Request, body: Increment) -> dict[str, Any]:
        self.counters[request.session[SESSION_ID_KEY]] += body.count
        return {"success": True}

    async def value(self, request: Request) -> dict[str, Any]:
        return {"count": self.counters[request.session[SESSION_ID_KEY]]}

    async def verify(self, request: Request, body: Verify) -> Verified:
        assert body.response.output[-1].type == "message", "what the policy said last"
        counted = self.counters[request.session[SESSION_ID_KEY]]
        return Verified(**body.model_dump(), reward=float(counted == body.expected_count), final_count=counted)


if __name__ == "__main__":
    config = BaseResourcesServerConfig(host="127.0.0.1", port=int(sys.argv[1]), entrypoint="", name="counter")
    server = Counter(config=config, server_client=MagicMock(spec=ServerClient))
    uvicorn.run(server.setup_webserver(), host="127.0.0.1", port=config.port, log_level="warning")
