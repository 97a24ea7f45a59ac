"""Whose turn it is: the ranks' time is shared by tokens among the models that have work (start-time fair queueing)."""

from collections.abc import Collection


class Turns:
    """The work that every model has had, as tokens."""

    def __init__(self) -> None:
        self._spent: dict[str, float] = {}
        self._now = 0.0

    def choose(self, ready: Collection[str]) -> str | None:
        """The model that has had least. One that had nothing to do meanwhile is not owed what others had."""
        if not ready:
            return None
        for model in ready:
            self._spent[model] = max(self._spent.get(model, 0.0), self._now)
        chosen = min(sorted(ready), key=self._spent.__getitem__)
        self._now = self._spent[chosen]
        return chosen

    def spend(self, model: str, tokens: float) -> None:
        """`tokens`: what its work has cost."""
        self._spent[model] = self._spent.get(model, self._now) + max(tokens, 1.0)

    def forget(self, model: str) -> None:
        self._spent.pop(model, None)
