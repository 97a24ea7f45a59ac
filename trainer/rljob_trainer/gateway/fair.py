"""Whose turn it is: the ranks' time is shared by tokens (start-time fair queueing), first among the clients that have work, by their shares, and then
among the models of the client."""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping


class Turns:
    """The work that clients, or models of one client, have had, as tokens over their shares."""

    def __init__(self) -> None:
        self._spent: dict[str, float] = {}
        self._now = 0.0

    def choose(self, ready: Collection[str]) -> str:
        """Who has had least of those that have work: one at least. One that had nothing to do meanwhile is not owed what others had."""
        for name in ready:
            self._spent[name] = max(self._spent.get(name, 0.0), self._now)
        chosen = min(sorted(ready), key=self._spent.__getitem__)
        self._now = self._spent[chosen]
        return chosen

    def spend(self, name: str, cost: float) -> None:
        """`cost`: of its work."""
        self._spent[name] = self._spent.get(name, self._now) + cost

    def forget(self, name: str) -> None:
        self._spent.pop(name, None)


class FairShares:
    """Turns of clients, and of each client's models."""

    def __init__(self) -> None:
        self._clients, self._models = Turns(), defaultdict[str, Turns](Turns)
        self._owners: dict[str, str] = {}

    def choose(self, ready: Mapping[str, str]) -> str | None:
        """The model whose turn it is. `ready`: those that have work, each with its client."""
        if not ready:
            return None
        self._owners |= ready
        client = self._clients.choose(set(ready.values()))
        return self._models[client].choose([model for model, owner in ready.items() if owner == client])

    def spend(self, model: str, tokens: float, share: Callable[[str], int]) -> None:
        """What the work of a model has cost. One that has gone meanwhile costs nobody anything. `share`: of a client."""
        if client := self._owners.get(model):
            self._clients.spend(client, max(tokens, 1.0) / share(client))
            self._models[client].spend(model, max(tokens, 1.0))

    def forget(self, model: str) -> None:
        """The model is gone. A client without models remains, so that it gains nothing by coming again."""
        if client := self._owners.pop(model, None):
            self._models[client].forget(model)
            if client not in self._owners.values():
                del self._models[client]
