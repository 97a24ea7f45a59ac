"""Clients that find the servers of a test, and do not wait long for them."""

import pytest

from rljob_trainer.sources import fetch, stores


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "FIRST_WAIT_SECONDS", 0.01)
    monkeypatch.setattr(fetch, "LOCK_POLL_SECONDS", 0.01)
    monkeypatch.setattr(stores, "BLOCK_BYTES", 10_000)


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the S3-compatible server."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIATEST")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL_S3", "HTTP_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
