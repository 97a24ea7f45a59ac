"""Does a service of adapters serve on this machine what docs/service-calls.md says? It makes every call of the SDK.

    python -m benchmarks.service_calls [--device gpu|cpu] [--size 0.1b]

The page is made on a CPU, where vLLM's workers are other code than on a GPU. Prints the calls that came out otherwise than the page says, with their
errors, and ends with 1 when there is one.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

from benchmarks.service import EXAMPLES, SECTIONS, merge, serving
from benchmarks.shapes import MODELS, model_of
from trainer.gateway.calls_page import PAGE, rows

PROGRAM = Path(__file__).parents[1] / "tests/trainer/gateway/sdk_calls.py"
SECONDS = 600


def main() -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.service_calls")
    parser.add_argument("--device", choices=[*SECTIONS], default="gpu")
    parser.add_argument("--size", choices=list(MODELS), default="0.1b")
    options = parser.parse_args()
    model = model_of(options.size)
    found = differing(options.device, model)
    print(f"{len(found)} of {len(on_page())} calls are not as on the page", flush=True)
    for call, outcome in found.items():
        print(f"{call}: {outcome}")
    return int(bool(found))


def differing(device: str, model: Path) -> dict[str, str]:
    """Calls whose outcome is not the page's, with it."""
    with tempfile.TemporaryDirectory() as scratch:
        data = Path(scratch)
        (data / "model").symlink_to(model)
        with serving(manifest(device, model), data) as url:
            command = [sys.executable, str(PROGRAM), url, str(model)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)["calls"]
    return {
        call: made.get(call, "not made") for call, served in on_page().items() if (made.get(call) == "yes") != served
    }


def manifest(device: str, model: Path) -> dict[str, Any]:
    found = yaml.safe_load((EXAMPLES / "service/service.yaml").read_text())
    found["spec"] = merge(found["spec"], SECTIONS[device] | {"service": {"name": str(model)}})
    return dict(found)


def on_page() -> dict[str, bool]:
    """Whether the newest version's call is served, by call."""
    return {call: served == "yes" for call, (served, *_) in rows(PAGE.read_text()).items()}


if __name__ == "__main__":
    sys.exit(main())
