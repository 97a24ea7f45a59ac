"""`python -m rljob_trainer.driver`: started by the launcher beside rank 0, with RLJOB_ATTEMPT_DIR set."""

import sys

# transformers imports torch when it finds it: five seconds and 400 MB for a tokenizer that does not need it.
sys.modules["torch"] = None  # type: ignore[assignment]

from rljob_trainer.driver.main import main  # noqa: E402

if __name__ == "__main__":
    main()
