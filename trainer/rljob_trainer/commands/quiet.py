"""Commands that people run print what concerns them, and not what libraries say as they are imported and load a model."""

import io
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout

from rljob_trainer.failure import ConfigurationError


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """For what imports and calls them: no warnings, of logs only errors, and nothing on standard output. A bug still shows what was printed there."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # its logger has a level and a handler of its own
    root, printed = logging.getLogger(), io.StringIO()
    level = root.level
    root.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stdout(printed):
            warnings.simplefilter("ignore")
            yield
    except (ConfigurationError, OSError):
        raise
    except Exception:
        sys.stderr.write(printed.getvalue())
        raise
    finally:
        root.setLevel(level)
