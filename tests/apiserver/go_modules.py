"""Sources of other projects, from which their CRDs and constants are read."""

import json
import subprocess
from functools import cache
from pathlib import Path


@cache
def source(module: str, digest: str) -> Path:
    """Of a Go module, with the hash that go.sum would have."""
    done = subprocess.run(("go", "mod", "download", "-json", module), check=True, capture_output=True, timeout=300)
    found = json.loads(done.stdout)
    assert found["Sum"] == digest
    return Path(found["Dir"])
