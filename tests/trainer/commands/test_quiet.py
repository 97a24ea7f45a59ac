"""What libraries say while a person's command works."""

import io
import logging
import warnings
from collections.abc import Iterator

import pytest

from rljob_trainer.commands.export import quiet_libraries
from rljob_trainer.failure import ConfigurationError


def chatter() -> None:
    print("a library's progress")
    warnings.warn("a library's warning", stacklevel=1)
    logging.getLogger("library").warning("a library's log")


@pytest.fixture(autouse=True)
def logged() -> Iterator[io.StringIO]:
    """What a person reads of the logs."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    logging.getLogger().addHandler(handler)
    yield stream
    logging.getLogger().removeHandler(handler)


def test_libraries_are_heard_afterwards_and_not_within(capsys: pytest.CaptureFixture[str], logged: io.StringIO) -> None:
    with warnings.catch_warnings(record=True) as heard, quiet_libraries():
        chatter()
    assert (*capsys.readouterr(), logged.getvalue(), heard) == ("", "", "", [])
    with pytest.warns(UserWarning, match="a library's warning"):
        chatter()
    assert (capsys.readouterr().out, logged.getvalue()) == ("a library's progress\n", "a library's log\n")


def test_errors_stay(logged: io.StringIO) -> None:
    with quiet_libraries():
        logging.getLogger("library").error("what is wrong")
    assert logged.getvalue() == "what is wrong\n"


def test_a_bug_shows_what_was_printed_before_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeError), quiet_libraries():
        chatter()
        raise RuntimeError
    assert capsys.readouterr().err == "a library's progress\n"


def test_a_mistake_of_the_user_is_one_message_without_it(
    capsys: pytest.CaptureFixture[str], logged: io.StringIO
) -> None:
    with pytest.raises(ConfigurationError), quiet_libraries():
        chatter()
        raise ConfigurationError("spec.model", "x", "is not known", "write another one")
    assert (*capsys.readouterr(), logged.getvalue()) == ("", "", "")
