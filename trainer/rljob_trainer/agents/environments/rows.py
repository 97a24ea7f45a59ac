"""The process that writes a file of prompts: `python -m rljob_trainer.agents.environments.rows MODULE REQUEST`, a JSON object of `environment`,
`arguments`, `offset`, `size`, `seed`, `source`, the names `keys` of the columns prompt, answer and data_source, and the `path` of the file.

It ends with status 0, or with the reason as the last line of stderr.
"""

import json
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from rljob_trainer.rewards.worker import die_with_parent


def main() -> None:
    module, request = sys.argv[1], json.loads(sys.argv[2])
    die_with_parent()
    try:
        write(module, request)
    except BaseException as error:
        sys.exit(f"{type(error).__name__}: {error}".replace("\n", " "))


def write(module: str, request: Mapping[str, Any]) -> None:
    """Raises what the library does, and ValueError when it has fewer rows."""
    rows = import_module(f"{__package__}.{module}").rows
    asked = {name: request[name] for name in ("environment", "arguments", "offset", "size", "seed")}
    count = 0
    with Path(request["path"]).open("w") as file:
        for row in rows(**asked):
            file.write(json.dumps(_columns(row, request), default=str) + "\n")
            count += 1
    if count < request["size"]:
        raise ValueError(f"there are {count} rows, and {request['size']} are asked for")


def _columns(row: dict[str, Any], request: Mapping[str, Any]) -> dict[str, Any]:
    """Under the names that spec.data has for them."""
    answer = row.pop("answer")
    known = {
        "prompt": row.pop("prompt"),
        "answer": "" if answer is None else str(answer),
        "data_source": request["source"],
    }
    return row | {request["keys"][name]: value for name, value in known.items()}


if __name__ == "__main__":
    main()
