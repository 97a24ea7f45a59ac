"""What the pages name exists: links, files, commands, flags, fields, values, metrics, reasons, variables; what they show is valid."""

import fnmatch
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from markdown import markdown

from api.specs import raw_spec
from kubectl_rljob.command_line import VERBS
from repository.pages import (
    PAGES,
    ROOT,
    TRACKED,
    WRITTEN,
    anchors,
    commands,
    name,
    plain_blocks,
    prose,
    ticked,
    yaml_blocks,
)
from rljob_api import leave_nodes, reasons
from rljob_api.metrics import METRICS
from rljob_api.rules import validate
from rljob_api.rules.fields import paths
from rljob_api.status import ConditionType, State

CODE = "".join(path.read_text() for file in TRACKED if file.endswith(".py") and (path := ROOT / file).is_file())
PROGRAM = r"(?:python -m ((?:benchmarks|rljob_trainer|kubectl_rljob)[\w.]*)|([\w/]*\w\.py)(?= --))([^`\n]*)"
"""Module, script, the rest of the line."""
every_page = pytest.mark.parametrize("page", PAGES, ids=name)
every_written_page = pytest.mark.parametrize("page", WRITTEN, ids=name)
SOURCES = ("", "operator", "trainer", "operator/rljob_operator", "trainer/rljob_trainer", "tests")
TOPS = {file.split("/")[0] for file in TRACKED if "/" in file}
SCHEMA = yaml.load((ROOT / "crds/rljob.yaml").read_text(), yaml.CSafeLoader)["spec"]["versions"][0]["schema"][
    "openAPIV3Schema"
]
VALUES = yaml.safe_load((ROOT / "charts/rljob/values.yaml").read_text())
KUBERNETES = {
    "CrashLoopBackOff",
    "DisruptionTarget",
    "GenericWorkload",
    "Evicted",
    "NodeAffinity",
    "OutOfcpu",
    "CreateContainerConfigError",
    "ErrImagePull",
    "FailedAttachVolume",
    "FailedMount",
    "ImagePullBackOff",
    "InvalidImageName",
    "Pulling",
    "Unschedulable",
    "OnDelete",
    "NotIn",
    "UnexpectedAdmissionError",
    "Parallel",
    "True",
    "RLJob",
}


@every_page
def test_links_lead_to_pages_and_headings_that_exist(page: Path) -> None:
    for link in re.findall(r"\]\(([^)]+)\)", prose(page)):
        if "://" not in link:
            file, _, anchor = link.partition("#")
            target = (page.parent / file) if file else page
            assert target.exists(), link
            assert not anchor or anchor in anchors(target), link


@every_page
def test_pictures_exist(page: Path) -> None:
    for source in re.findall(r'(?:src|srcset)="([^"]+)"', prose(page)):
        assert (page.parent / source).is_file(), source


@every_written_page
def test_files_that_are_named_exist(page: Path) -> None:
    for path in re.findall(r"(?<![\w/.-])((?:[\w.-]+/)+[\w.-]*\w|\w+\.py)\b", "\n".join(ticked(page) | commands(page))):
        if path.split("/")[0] in TOPS or (path.endswith(".py") and "/" in path):
            assert any((place / path).exists() for place in (page.parent, *(ROOT / s for s in SOURCES))), path


@every_written_page
def test_verbs_and_flags_of_the_plugin_exist(page: Path) -> None:
    verbs = {verb.name: verb for verb in VERBS}
    for verb, rest in re.findall(r"kubectl rljob ([\w-]+)([^|`\n]*)", "\n".join(commands(page))):
        assert verb in verbs, verb
        known = {flag for param in verbs[verb].params for flag in param.opts}
        assert set(re.findall(r"(?<!\S)--?[a-z][a-z-]*", rest)) <= known, f"{verb}{rest}"


@pytest.mark.parametrize("page", [*WRITTEN, *sorted(ROOT.glob("examples/**/*.yaml"))], ids=name)
def test_programs_and_their_flags_exist(page: Path) -> None:
    for module, script, rest in re.findall(PROGRAM, page.read_text()):
        path = script or module.replace(".", "/")
        found = [ROOT / f for f in TRACKED if fnmatch.filter([f"/{f}"], f"*/{path}{'' if script else '*.py'}")]
        text = "".join(file.read_text() for file in found)
        assert text, path
        for flag in re.findall(r"(?<!\S)--[a-z-]+", rest):
            assert f'"{flag}"' in text, f"{path} {flag}"


@every_written_page
def test_targets_of_make_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {m for line in commands(page) for m in re.findall(r"^make ([a-z-]+)", line)} <= targets


@every_written_page
def test_values_of_the_chart_and_of_jobs_exist(page: Path) -> None:
    """`--set` is a flag of Helm, of `kubectl rljob plan` and of the local run."""
    text = page.read_text()
    fields = {field.replace("[0]", "") for field in re.findall(r"--set '?([\w.\[\]]+)=", text)} - set(paths())
    named = [*fields, *re.findall(r"chart value `([\w.]+)`", text)]
    if page.name == "operations.md":
        named += [t.split("=")[0] for t in ticked(page) if t.split(".")[0].split("=")[0] in VALUES]
    for value in named:
        assert leads_somewhere(value.split("."), VALUES), value


def leads_somewhere(path: list[str], values: Any) -> bool:
    """An empty mapping takes any key."""
    return not path or values == {} or (path[0] in values and leads_somewhere(path[1:], values[path[0]]))


@every_written_page
def test_fields_of_spec_and_status_exist(page: Path) -> None:
    """`spec.a.b` from the root; `a.b` wherever there is an `a`."""
    for field in ticked(page):
        path = re.match(r"\.?([a-z]\w*(?:\[\w*\])?(?:\.[a-zA-Z]\w*(?:\[\w*\])?)+)(?=$|:| )", field)
        if not path or path[1].endswith(".py"):
            continue
        keys = [key.split("[")[0] for key in path[1].split(".")]
        starts = (
            [SCHEMA] if keys[0] in ("spec", "status") else [o for o in objects(SCHEMA) if keys[0] in o["properties"]]
        )
        found = any(reaches(keys, start) for start in starts) or leads_somewhere(keys, VALUES)
        assert found or not starts, field


def objects(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every object with known fields."""
    if "properties" in schema:
        yield schema
    for inner in (*schema.get("properties", {}).values(), *filter(None, [schema.get("items")])):
        yield from objects(inner)


def reaches(keys: list[str], schema: dict[str, Any]) -> bool:
    schema = schema.get("items", schema)
    if not keys or "properties" not in schema:
        return not keys or schema.get("type") == "object"
    return keys[0] in schema["properties"] and reaches(keys[1:], schema["properties"][keys[0]])


@every_written_page
def test_metrics_of_a_step_are_in_the_table(page: Path) -> None:
    groups = {metric.split("/")[0] for metric in METRICS}
    for metric in ticked(page):
        if re.fullmatch(r"[a-z_]+/[a-z_*]+", metric) and metric.split("/")[0] in groups:
            assert fnmatch.filter(METRICS, metric), metric


@every_written_page
def test_reasons_states_and_exceptions_are_those_of_the_code(page: Path) -> None:
    known = {word for word in vars(reasons).values() if isinstance(word, str)} | {
        *get_args(State),
        *get_args(ConditionType),
        *leave_nodes.TAINTS,
        *leave_nodes.CONDITIONS,
        *leave_nodes.REQUESTS,
        leave_nodes.DONE,
    }
    for word in ticked(page):
        if re.fullmatch(r"(?:[A-Z][a-z]+)+", word) and word not in known | KUBERNETES:
            assert re.search(rf"^(class {word}[(:]|{word} = )", CODE, re.MULTILINE), word


@every_written_page
def test_a_table_ends_with_an_empty_line(page: Path) -> None:
    lines = page.read_text().split("\n")
    glued = [after for row, after in pairwise(lines) if row.startswith("| ") and after and not after.startswith("|")]
    assert glued == [], "would be shown as a row of the table"


@every_written_page
def test_items_of_a_list_are_shown_as_such(page: Path) -> None:
    """Python-Markdown wants four spaces before what continues an item after an empty line; otherwise the next items are text."""
    shown = markdown(page.read_text(), extensions=["tables", "pymdownx.superfences"])
    paragraphs = re.findall(r"<p>(.*?)</p>", shown, re.DOTALL)
    assert [text for text in paragraphs if re.search(r"\n(\d+\.|[-*]) ", text)] == []


@every_written_page
def test_variables_of_ours_are_read_somewhere(page: Path) -> None:
    for variable in set(re.findall(r"\bRLJOB_[A-Z_]*[A-Z]\b", page.read_text())):
        assert f'"{variable}"' in CODE, variable


@pytest.mark.parametrize("page", [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))], ids=name)
def test_what_is_shown_in_yaml_breaks_no_rule(page: Path) -> None:
    for shown in yaml_blocks(page):
        part = shown.get("spec", shown)
        whole = part if shown.get("kind") == "RLJob" else raw_spec(**part)
        assert validate(whole, "job").violations == ()


@every_written_page
def test_what_is_shown_of_a_job_is_marked_as_yaml_and_so_checked(page: Path) -> None:
    for block in plain_blocks(page):
        try:
            shown = yaml.safe_load(block)
        except yaml.YAMLError:
            continue
        part = shown.get("spec", shown) if isinstance(shown, dict) else None
        fields = set(part) if isinstance(part, dict) else set()
        assert not fields or fields - SCHEMA["properties"]["spec"]["properties"].keys(), block


@pytest.mark.parametrize("page", [p for p in WRITTEN if p.parts[-2] != "evidence"], ids=name)
def test_a_job_is_applied_by_the_server_whose_refusal_is_short(page: Path) -> None:
    applied = [line for line in commands(page) if re.match(r"kubectl apply .*-[fk] ", line)]
    assert all(line.startswith("kubectl apply --server-side") for line in applied), applied
