"""In this process Megatron and vLLM are imported anyway, which in one of its own would take most of its time."""

import pytest

from rljob_trainer.commands import known_keys


@pytest.mark.usefixtures("megatron")
def test_the_known_keys_are_those_of_the_installed_packages() -> None:
    """`make generate` writes them."""
    assert known_keys.TARGET.read_text() == known_keys.render()
