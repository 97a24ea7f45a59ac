"""What parts of the gateway ask of each other."""

from collections.abc import Mapping
from typing import Protocol

from rljob_trainer.gateway.books import Book


class Clients(Protocol):
    """Whose models these are."""

    def living(self) -> list[Book]:
        """All models."""

    def owner(self, book: Book) -> str:
        """The client of a model."""

    def share(self, client: str) -> int:
        """Its part of the ranks' time, relative to others'."""

    def find(self, model: str, path: str) -> str:
        """The directory of a state, by a model of the client and its name for the state; empty: there is none."""

    def refusal(self, book: Book, name: str) -> str | None:
        """Why nothing is saved under this name. None: there is room."""

    async def has_saved(self, book: Book, seq: int, directory: str) -> None:
        """A request has written a directory for a client, who does not hear of it before this."""

    async def collect(self) -> None:
        """Ranks have begun, and write nothing: what nobody has a use for can go."""


class Sampling(Protocol):
    """The samples that clients wait for."""

    @property
    def directories(self) -> set[str]:
        """Snapshots that servers read now, or may still read."""

    @property
    def held(self) -> Mapping[str, int]:
        """Bytes of prompts and answers, by client."""

    async def end(self, session: str) -> None:
        """Cancel those of a session."""
