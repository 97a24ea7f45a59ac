"""RLJobs from files."""

import sys
from collections.abc import Iterable
from pathlib import Path

from kubectl_rljob.errors import UserError
from rljob_api import manifest
from rljob_api.manifest import Manifest, ManifestError, OverrideError


def read(file: str, settings: Iterable[str] = ()) -> list[Manifest]:
    """All RLJobs of a YAML or JSON file (`-`: standard input), with `settings` put in. Raises UserError."""
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text()
        return manifest.read(text, settings)
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"cannot read {file}: is not UTF-8") from error
    except ManifestError as error:
        raise UserError(f"{file}: {error}") from error
    except OverrideError as error:
        raise UserError(str(error)) from error
