"""values.yaml is the source of values.schema.json, which refuses what is not in it."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from chart.chart import CHART, HELM, NO_HELM, ROOT, helm
from chart.settings import EVERYTHING
from script import loaded

TEXT = (CHART / "values.yaml").read_text()
SCHEMA = json.loads((CHART / "values.schema.json").read_text())


def generator() -> Any:
    return loaded(ROOT / "charts" / "values_reference.py")


def closed(schema: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Paths of objects whose keys are known."""
    if schema.get("additionalProperties") is False:
        yield path
    for key, inner in schema.get("properties", {}).items():
        yield from closed(inner, (*path, key))


def nullable(schema: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Paths of what need not be there, the outermost."""
    for key, inner in schema.get("properties", {}).items():
        if key in schema.get("required", []):
            yield from nullable(inner, (*path, key))
        else:
            yield (*path, key)


def test_the_schema_and_the_page_are_what_the_values_say() -> None:
    made = generator()
    assert made.whole(TEXT) == SCHEMA, "run `make generate`"
    page = (ROOT / "docs/reference/values.md").read_text()
    assert made.HEAD + "".join(made.rows(TEXT)) == page, "run `make generate`"
    assert made.readme(TEXT) == (CHART / "README.md").read_text(), "run `make generate`"


def test_a_value_that_nobody_described_is_an_error() -> None:
    with pytest.raises(KeyError):
        generator().whole("# -- What for.\na: 1\nb: 2\n")


def test_a_default_is_required_unless_it_is_empty_or_nullable() -> None:
    empty = "# -- What for.\na: {}\n# -- What for.\nb: false\n"
    nullable = "# -- What for.\n# @nullable\nc:\n  # -- What for.\n  d: 1\n"
    made = generator().whole(empty + nullable + "# -- What for.\ne:\n  # -- What for.\n  f: 1\n")
    assert (made.get("required", []), made["properties"]["c"].get("required", [])) == (["e"], [])
    assert made["properties"]["e"].get("required", []) == ["f"]


def test_every_section_is_closed() -> None:
    sections = {(key,) for key, value in yaml.safe_load(TEXT).items() if isinstance(value, dict) and value}
    passed_through = {("global",), ("podSecurityContext",), ("resources",), ("securityContext",)}
    assert set(closed(SCHEMA)) >= sections - passed_through


@pytest.mark.skipif(HELM is None, reason=NO_HELM)
@pytest.mark.parametrize("path", list(closed(SCHEMA)), ids=".".join)
def test_a_key_that_does_not_exist_is_refused(path: tuple[str, ...]) -> None:
    result = helm(".".join((*path, "nonsense")) + "=1")
    assert result.returncode != 0
    assert "additional properties 'nonsense' not allowed" in result.stderr


@pytest.mark.skipif(HELM is None, reason=NO_HELM)
@pytest.mark.parametrize(
    "wrong",
    [
        "logLevel=LOUD",
        "image.pullPolicy=Sometimes",
        "image.digest=latest",
        "apiRequests.qps=0",
        "networkPolicy.apiServerPorts={}",
        "watchNamespaces={Research}",
        "podDisruptionBudget.maxUnavailable=2",
        "jobs.podSecurity.runAsUser=0",
        "jobs.podSecurity.fsGroupChangePolicy=Never",
    ],
)
def test_a_value_of_the_wrong_kind_is_refused(wrong: str) -> None:
    assert helm(wrong).returncode != 0


@pytest.mark.skipif(HELM is None, reason=NO_HELM)
@pytest.mark.parametrize(
    "key", ["image", "rbac", "crds", "metrics.serviceMonitor", "serviceAccount.create", "logLevel"]
)
def test_null_in_place_of_a_default_is_refused_by_its_name(key: str) -> None:
    result = helm(f"{key}=null")
    outer, _, inner = key.rpartition(".")
    place = f"at '{'/' * bool(outer)}{outer}'"
    assert result.returncode != 0 and f"{place}: missing property '{inner}'" in result.stderr


@pytest.mark.skipif(HELM is None, reason=NO_HELM)
def test_null_is_no_error_of_a_template_where_it_is_allowed() -> None:
    given = {setting.partition("=")[0] for setting in EVERYTHING} | {"global"}
    nulls = {".".join(path) for path in nullable(SCHEMA)} - given
    assert nulls > {"jobs", "resources", "image.tag", "dashboards.labels"}
    result = helm(*EVERYTHING, *(f"{key}=null" for key in sorted(nulls)))
    assert result.returncode == 0, result.stderr


@pytest.mark.skipif(HELM is None, reason=NO_HELM)
def test_a_parent_chart_may_set_globals() -> None:
    assert helm("global.registry=example").returncode == 0
