"""What the init container of a sandbox does: it brings the helper, and the token of this pod."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from rljob_api import names
from rljob_trainer.sandboxes.frames import token_of

HELPER = Path(__file__).with_name("helper")
"""Which the image holds, compiled from helper.c."""


def bring(directory: Path, environment: Mapping[str, str] = os.environ) -> None:
    """`environment` has the job's token and the pod's uid (names.ENV_*)."""
    shutil.copyfile(HELPER, directory / "helper")
    (directory / "helper").chmod(0o555)
    token = token_of(environment[names.ENV_ROLLOUT_TOKEN], environment[names.ENV_POD_UID])
    (directory / "token").write_text(token)
