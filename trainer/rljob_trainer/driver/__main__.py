"""The driver's process, alongside rank 0: `prepare` once in a fork server, `main` in a fork of it for each attempt."""

import sys

# transformers imports torch when it finds it: five seconds and 400 MB for a tokenizer that does not need it.
sys.modules["torch"] = None  # type: ignore[assignment]

from rljob_trainer.driver.main import main  # noqa: E402


def prepare() -> None:
    """Import everything that takes seconds."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast  # noqa: F401


if __name__ == "__main__":
    main()
