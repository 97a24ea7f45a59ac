"""What clients ask about what they have saved."""

from datetime import UTC, datetime
from typing import Any

from aiohttp import web

from rljob_trainer.gateway.service import GatewayService, creation
from rljob_trainer.gateway.wire import requests
from rljob_trainer.gateway.wire.requests import SAMPLER_WEIGHTS, SCHEME, read

RouteAnswer = web.Response | dict[str, Any]


class SavedRoutes:
    """Handlers, of the client's name and the request. Raise UnknownError."""

    def __init__(self, service: GatewayService, base_model: str) -> None:
        self._service, self._base = service, base_model

    async def weights_info(self, client: str, request: web.Request) -> RouteAnswer:
        saved = self._service.named(client, (await read(request, requests.WeightsInfo)).tinker_path)
        trained = {"train_unembed": False, "train_mlp": saved.mlp, "train_attn": saved.attention}
        described = {"base_model": self._base, "is_lora": True, "lora_rank": saved.rank}
        return described | trained | {"optimizer_config": {"type": "adamw"}}

    async def run(self, client: str, request: web.Request) -> RouteAnswer:
        run = request.match_info["run"]
        saved = [s for s in self._service.names.saved.values() if s.model == run and s.client == client]
        rank = saved[0].rank if saved else creation(self._service.book(client, run)).rank
        described = {"training_run_id": run, "base_model": self._base, "model_owner": client, "is_lora": True}
        return described | {"lora_rank": rank, "last_request_time": _time(max((s.time for s in saved), default=0.0))}

    async def checkpoints(self, client: str, request: web.Request) -> RouteAnswer:
        found = [
            {
                "checkpoint_id": path.removeprefix(SCHEME).partition("/")[2],
                "checkpoint_type": "sampler" if f"/{SAMPLER_WEIGHTS}/" in path else "training",
                "time": _time(saved.time),
                "tinker_path": path,
            }
            for path, saved in self._service.names.saved.items()
            if saved.model == request.match_info["run"] and saved.client == client
        ]
        return {"checkpoints": found}

    async def delete(self, client: str, request: web.Request) -> RouteAnswer:
        named = request.match_info
        await self._service.delete(client, f"{SCHEME}{named['run']}/{named['kind']}/{named['name']}")
        return {}


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()
