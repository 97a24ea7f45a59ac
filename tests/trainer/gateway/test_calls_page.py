"""The page of the SDK's calls leaves none out."""

import inspect

from trainer.gateway.calls_page import PAGE, VERSIONS, rows
from trainer.gateway.sdk_calls import CLIENTS

ASK_NOTHING = {"create", "create_rest_client", "get_console_url", "get_telemetry", "on_queue_state_change"}
"""Calls that the service does not hear of."""


def test_every_call_of_the_newest_version_is_on_the_page() -> None:
    public = {name for client in CLIENTS for name, _ in inspect.getmembers(client, callable) if name[0] != "_"}
    calls = {name for name in public if not name.endswith("_async")} - ASK_NOTHING
    assert calls == {row.partition(":")[0] for row in rows(PAGE.read_text())}


def test_the_page_has_a_cell_for_each_version() -> None:
    assert {len(cells) for cells in rows(PAGE.read_text()).values()} == {len(VERSIONS)}
