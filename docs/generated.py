"""The files that are generated from the spec, the commands, the metrics and the chart: one process imports and reads these once for all of them.

python -m docs.generated            # write
python -m docs.generated --check    # exit 1 on drift, with the difference
"""

import sys
from collections.abc import Callable
from difflib import unified_diff
from pathlib import Path

import kubectl_rljob.reference
import rljob_import.reference
import rljob_operator.reference
import rljob_trainer.reference
from charts import values_reference
from docs.pictures.every import pictures
from rljob_api.schema import crd, docs, files

ROOT = Path(__file__).parents[1]
FILES: dict[str, Callable[[], str]] = {
    "crds/rljob.yaml": crd.render,
    "charts/rljob/files/rljob.yaml": crd.render,
    "charts/rljob/files/backends.yaml": files.rights,
    "charts/rljob/files/advice.yaml": files.advice,
    "charts/rljob/values.schema.json": values_reference.schema_file,
    "charts/rljob/README.md": values_reference.readme_file,
    "charts/rljob-job/values.schema.json": files.job_chart_file,
    "docs/reference/api.md": docs.api_page,
    "docs/reference/cli.md": kubectl_rljob.reference.render,
    "docs/reference/import.md": rljob_import.reference.render,
    "docs/reference/metrics.md": docs.metrics_page,
    "docs/reference/models.md": docs.models_page,
    "docs/reference/operator-metrics.md": rljob_operator.reference.render,
    "docs/reference/rljob.schema.json": files.editor,
    "docs/reference/trainer.md": rljob_trainer.reference.render,
    "docs/reference/values.md": values_reference.page,
}
DIRECTORIES = ("docs/reference", "docs/images")
"""Everything in them is generated."""


def rendered() -> dict[str, str]:
    """Texts by path."""
    images = {f"docs/images/{name}": text for name, text in pictures().items()}
    return {path: render() for path, render in FILES.items()} | images


def difference(path: str, text: str) -> list[str]:
    """Lines of a diff from the file to `text`. None if they are the same."""
    file = ROOT / path
    before = file.read_text() if file.exists() else ""
    return [*unified_diff(before.splitlines(True), text.splitlines(True), path, "generated")]


def check(texts: dict[str, str]) -> int:
    """What has drifted, as an exit code, and printed."""
    lines = [line for path, text in texts.items() for line in difference(path, text)]
    there = {str(file.relative_to(ROOT)) for directory in DIRECTORIES for file in (ROOT / directory).iterdir()}
    lines += [f"{path}: nothing generates it\n" for path in sorted(there - texts.keys())]
    print("".join(lines) or "generated files: up to date")
    return int(bool(lines))


def main() -> int:
    texts = rendered()
    if "--check" in sys.argv[1:]:
        return check(texts)
    for path, text in texts.items():
        (ROOT / path).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
