"""What one client may have of the service: spec.service.limits, and those of clients that are named in spec.service.clients."""

from rljob_api.spec.service import ClientLimits, ServiceSpec


class Limits:
    """Those of every client. A message says which limit it was, and what to do; None: there is room."""

    def __init__(self, spec: ServiceSpec) -> None:
        self._spec, self._own = spec, {client.name: client for client in spec.clients}

    def share(self, client: str) -> int:
        """Its part of the ranks' time, relative to others'."""
        return self._of(client).share

    def models(self, client: str, trained: int, of_all: int) -> str | None:
        """Why a further model is refused. `trained`: models of the client; `of_all`: of all clients."""
        if of_all >= self._spec.max_models:
            return f"this service trains {self._spec.max_models} models at a time (spec.service.maxModels): end another session first"
        most = self._of(client).max_models
        if most is not None and trained >= most:
            return (
                f"{client} trains {most} models at a time ({self._field(client)}.maxModels): end another session first"
            )
        return None

    def saved(self, client: str, kept: int) -> str | None:
        """Why nothing further is saved. `kept`: states and snapshots of the client."""
        most = self._of(client).max_saved
        if most is not None and kept >= most:
            return f"{client} has saved {kept} states and snapshots, and {most} is the most ({self._field(client)}.maxSaved): delete one first"
        return None

    def _of(self, client: str) -> ClientLimits:
        return self._own.get(client, self._spec.limits)

    def _field(self, client: str) -> str:
        return f"spec.service.clients[{client}]" if client in self._own else "spec.service.limits"
