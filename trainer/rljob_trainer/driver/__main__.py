"""The driver's process, alongside rank 0: `prepare` once in a fork server, `main` in a fork of it for each attempt."""

import os
import sys

# transformers imports torch when it finds it: five seconds and 400 MB for a tokenizer that does not need it.
sys.modules["torch"] = None  # type: ignore[assignment]

from rljob_trainer.driver.main import main  # noqa: E402

QUIET = "TRANSFORMERS_NO_ADVISORY_WARNINGS"


def prepare() -> None:
    """Import everything that takes seconds. transformers' advice that PyTorch was not found would be the first line of every job's log."""
    before = os.environ.get(QUIET)
    os.environ[QUIET] = "1"
    from transformers import AutoTokenizer, PreTrainedTokenizerFast  # noqa: F401

    if before is None:
        del os.environ[QUIET]
    else:
        os.environ[QUIET] = before


if __name__ == "__main__":
    main()
