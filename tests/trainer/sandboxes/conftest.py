"""What tests of sandboxes have in common."""

import pytest

from rljob_trainer.agents import claims
from trainer.sandboxes.helpers import TOKEN


@pytest.fixture
def one_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all sandboxes: `trainer.sandboxes.pods`."""
    monkeypatch.setattr(claims, "token_of", lambda secret, uid: TOKEN)
