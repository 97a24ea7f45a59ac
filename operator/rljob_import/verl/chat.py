"""What verl gives the chat template, in every task."""

from collections.abc import Iterator

from rljob_import.settings import Settings
from rljob_import.table import Field, Said


def template_arguments(settings: Settings) -> Iterator[Said]:
    for key, given in settings.below("data.apply_chat_template_kwargs").items():
        yield Field(f"data.chatTemplate.arguments.{key}", given.value, given.name)
