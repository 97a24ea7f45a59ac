"""The page that says which calls of the SDK a service serves, made by making them.

`python -m trainer.gateway.calls_page URL BASE_MODEL`, of a service that runs, writes it.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from trainer.agents.libraries import packages
from trainer.gateway.sdk_calls import ABSENT, SERVED

PAGE = Path(__file__).parents[3] / "docs/service-calls.md"
PINNED, *OLDER = VERSIONS = ("0.38.0", "0.34.0", "0.30.4")
"""Of the SDK: the one of the development environment, and two older ones."""
SECONDS = 400

Outcomes = Mapping[str, str]
"""By call: SERVED, or the error."""

_HEAD = """# Calls of the SDK

Which calls of the `tinker` SDK [a service](service.md) serves, by its versions. The page is made by running them:
`tests/trainer/gateway/sdk_calls.py` makes each call, and a test fails when the page says something else, or lacks a call of the newest version.
A call that a version does not have is `-`. An option is served when what the model saves is said to have it: a model that is created with
`train_unembed=True` is made, without adapters of the output layer ([why](service.md#what-is-not-trained)).

"""


def outcomes(version: str, url: str, base_model: str) -> Outcomes:
    """Those of a version, in a process of its own."""
    path = [] if version == PINNED else [str(packages(f"tinker=={version}"))]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path), "TINKER_TELEMETRY": "0", "HF_HUB_OFFLINE": "1"}
    program = str(Path(__file__).with_name("sdk_calls.py"))
    command = [sys.executable, program, url, base_model]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["version"] == version
    return dict(found["calls"])


def rows(text: str) -> dict[str, list[str]]:
    """The cells of a page, by call."""
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| `")
    ]
    return {call.strip("`"): served for call, *served in cells}


def page(found: Mapping[str, Outcomes]) -> str:
    """`found`: by version."""
    lines = ["| call | " + " | ".join(found) + " |", "| --- |" + " --- |" * len(found)]
    for call in next(iter(found.values())):
        lines.append(f"| `{call}` | " + " | ".join(cell(calls[call]) for calls in found.values()) + " |")
    return _HEAD + "\n".join(lines) + "\n"


def cell(outcome: str) -> str:
    return {SERVED: "yes", ABSENT: "-"}.get(outcome, "no")


if __name__ == "__main__":
    PAGE.write_text(page({version: outcomes(version, *sys.argv[1:]) for version in VERSIONS}))
