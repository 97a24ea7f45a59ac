"""The process that runs spec.data.custom: `python -m rljob_trainer.custom_rows.worker FILE NAME ARGUMENTS SECONDS SEED`.

First it says {"takes": names, "concurrent": false} or {"error": text}. Then it reads pickled pairs of a number and {"rows": dicts of VALUES}, and
answers each with {"number", "made": for each row a list of objects as JSON text}, perhaps for fewer rows than it was given, and with "error" and
"kind" where the row behind the last of them failed. Answers are lines of JSON, since the user's code may write them. A row has SECONDS. Python's
and numpy's random numbers begin with SEED.

A function returns a dict, several (a list or a generator), or None for a row that is left out. A class is made once, and its object called.
"""

import base64
import contextlib
import inspect
import json
import pickle
import random
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import date, time
from decimal import Decimal
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, cast
from uuid import UUID

from rljob_trainer.rewards.worker import BY_NAME, channel, die_with_parent, is_async, load, parameters_of, say
from rljob_trainer.user_code import explain

VALUES = ("row", "file")
"""What a function may take, besides its own arguments."""
MOST_ROWS = 1024
"""Made of one row."""
ANSWER_SECONDS = 1.0
"""After so long no other row of a call is begun, and the answer says what was made."""
LARGEST = 2**24
"""Characters of JSON of all that is made of one row. An answer with several rows has at most half as much more: it is JSON again, which may be twice
as long, and the driver takes lines of 2**26."""
Function = Callable[..., Any]


class NotRows(Exception):
    """Completes "rows() in rows.py returned ..."."""


def main() -> None:
    path, name, given, seconds, seed = sys.argv[1:]
    die_with_parent()
    questions, answers = channel()
    try:
        target = load(path, name)
        sow(int(seed))
        function, takes = ready(target, json.loads(given))
    except BaseException as error:
        say(answers, error=explain(error, path, name))
        return
    say(answers, takes=takes, concurrent=False)
    with contextlib.suppress(EOFError):
        while True:
            number, asked = pickle.load(questions)
            say(answers, number=number, **answer(function, asked["rows"], float(seconds), path, name))


def ready(target: Function, arguments: Mapping[str, Any]) -> tuple[Function, list[str]]:
    """What is called for each row, and the names of what it takes: an object of a class, which gets the arguments, or the function with them.

    Raises TypeError for an argument that nothing takes, or a parameter that nothing is given.
    """
    parameters = inspect.signature(target).parameters.values()
    names = {p.name for p in parameters if p.kind in BY_NAME}
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    strange = sorted(arguments.keys() - names)
    if strange and not takes_any:
        raise TypeError(f"takes no argument {strange[0]!r} of spec.data.custom.arguments")
    hidden = sorted(arguments.keys() & set(VALUES))
    if hidden and not inspect.isclass(target):
        raise TypeError(f"every call has a {hidden[0]!r} of its own: rename it in spec.data.custom.arguments")
    called, constant = target, arguments
    if inspect.isclass(target):
        called, constant = cast(Function, target(**arguments)), {}
    if is_async(called):
        raise TypeError("is async: rows are made one after another, by a plain function")
    takes = parameters_of(called, [*VALUES, *constant])
    return partial(called, **constant), [name for name in takes if name in VALUES]


def sow(seed: int) -> None:
    """Random numbers that are the same in every attempt; numpy's where the file has imported it."""
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)


def answer(function: Function, rows: Iterable[dict[str, Any]], seconds: float, path: str, name: str) -> dict[str, Any]:
    """What was made, up to the row that fails, that fills the answer, or with which its time is over."""
    made, size, end = list[list[str]](), 0, monotonic() + ANSWER_SECONDS
    for values in rows:
        try:
            with limited(seconds):
                texts = [_text(row) for row in _rows(function(**values))]
            own = sum(map(len, texts))
            if own > LARGEST:
                raise NotRows(f"rows of {own} characters of JSON, and at most {LARGEST} may be made of one")
        except NotRows as error:
            return {"made": made, "error": f"{name}() in {Path(path).name} returned {error}", "kind": "value"}
        except Late:
            return {"made": made, "error": f"took longer than {seconds:g} s", "kind": "timeout"}
        except BaseException as error:
            return {"made": made, "error": explain(error, path, name), "kind": "raised"}
        made.append(texts)
        size += own
        if size > LARGEST // 2 or monotonic() > end:
            break
    return {"made": made}


class Late(BaseException):
    """The time of a row is over. No Exception, which the user's code may catch."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raises Late. What never returns to Python is ended by the driver, with this process."""

    def late(*_: object) -> None:
        raise Late

    signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _rows(returned: Any) -> Iterator[Mapping[str, Any]]:
    if returned is None:
        return
    if isinstance(returned, Mapping):
        yield returned
        return
    if isinstance(returned, str | bytes) or not isinstance(returned, Iterable):
        raise NotRows(f"{_short(returned)}, which is neither a dict nor several nor None")
    for count, row in enumerate(returned, 1):
        if not isinstance(row, Mapping):
            raise NotRows(f"several rows of which one is {_short(row)} and no dict")
        if count > MOST_ROWS:
            raise NotRows(f"more than {MOST_ROWS} rows for one")
        yield row


def _text(row: Mapping[str, Any]) -> str:
    try:
        return json.dumps(dict(row), default=_plain)
    except (TypeError, ValueError, RecursionError) as error:
        raise NotRows(f"a row that cannot be written as JSON: {error}") from error


def _plain(value: Any) -> Any:
    """A value that JSON does not know, but data files do. Bytes become a data URL, as images are read."""
    if isinstance(value, bytes):
        return "data:;base64," + base64.b64encode(value).decode()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, date | time | Decimal | UUID | Path):
        return str(value)
    if hasattr(value, "tolist"):  # numpy's
        return value.tolist()
    raise TypeError(f"it holds a {type(value).__name__}, {_short(value)}")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


if __name__ == "__main__":
    main()
