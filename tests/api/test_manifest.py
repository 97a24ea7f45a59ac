"""RLJobs in a text: what it says twice is told with the other broken rules."""

from typing import Any

import pytest
import yaml

from api.specs import raw_spec
from rljob_api import names
from rljob_api.manifest import ManifestError, read
from rljob_api.yaml_text import documents


def job(name: str = "demo", **metadata: str) -> str:
    head = {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": {"name": name} | metadata}
    return yaml.safe_dump(head | {"spec": raw_spec()}, sort_keys=False)


def test_a_key_that_stands_twice_is_a_broken_rule_with_both_lines() -> None:
    text = "apiVersion: rljob.dev/v1alpha1\nkind: RLJob\nmetadata: {name: a}\nspec:\n  image: i\n  train: {steps: 1}\n  image: j\n  train: []\n"
    (found,) = read(text)
    assert [str(v) for v in found.problems] == [
        "spec.image = i and j: stands twice, in lines 5 and 7; keep one of them",
        "spec.train = an object and a list: stands twice, in lines 6 and 8; keep one of them",
    ]
    assert [v.field for v in found.validate().violations][:2] == ["spec.image", "spec.train"]


def test_a_key_that_stands_twice_inside_of_a_list_has_its_path() -> None:
    (found,) = documents("a:\n- b: {c: 1}\n- {b: 1, b: {d: 1, d: 2}}")
    assert [d.location for d in found.duplicates] == [("a", 1, "b"), ("a", 1, "b", "d")]


def test_merged_and_repeated_parts_of_yaml_are_no_duplicates() -> None:
    (found,) = documents("a: &x {b: 1, c: 2}\nd: {<<: *x, b: 3}\ne: [*x, *x]")
    assert (found.duplicates, found.value["d"]) == ([], {"b": 3, "c": 2})


def test_two_jobs_of_one_name_are_refused_unless_their_namespaces_differ() -> None:
    first, second = read(f"{job()}---\n{job()}")
    assert (first.problems, [v.field for v in second.problems]) == ((), ["metadata.name"])
    assert [m.problems for m in read(f"{job()}---\n{job('other')}---\n{job(namespace='b')}")] == [(), (), ()]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-6", 1e-6), ("1.5E+3", 1500.0), (".5", 0.5), ("2.", 2.0), ("-3", -3), ("+1e2", 100.0),
        ("1.2.3", "1.2.3"), ("e5", "e5"), ("-", [None]), ("2026-11-22", "2026-11-22"), ("'1e-6'", "1e-6"), ("12Gi", "12Gi"),
        (".inf", float("inf")), ("true", True), ("null", None), ("{1: a, on: b}", {"1": "a", "on": "b"}),
    ],
)  # fmt: skip
def test_values_are_those_that_kubectl_reads(text: str, value: object) -> None:
    (found,) = documents(f"a: {text}" if text != "-" else "a:\n-")
    assert found.value == {"a": value}


def test_json_is_yaml() -> None:
    (found,) = documents('{"a": [1, {"b": null}], "c": "1e-6"}')
    assert found.value == {"a": [1, {"b": None}], "c": "1e-6"}


def test_a_kind_that_is_misspelt_is_an_error_also_among_other_jobs() -> None:
    for kind in ("RLjob", "rljob", "RlJob", "RLJobs", "Job"):
        with pytest.raises(
            ManifestError, match=rf"^kind = {kind}: must be RLJob, since apiVersion is rljob.dev/v1alpha1$"
        ):
            read(f"{job()}---\n" + job("other").replace("kind: RLJob", f"kind: {kind}"))
    with pytest.raises(ManifestError, match=r"^kind = unset: must be RLJob"):
        read(job().replace("kind: RLJob\n", ""))
    with pytest.raises(ManifestError, match=r"^kind = RLjob: must be RLJob, and apiVersion rljob.dev/v1alpha1$"):
        read(job().replace("kind: RLJob", "kind: RLjob").replace(names.API_VERSION, "v1"))
    assert len(read(f"{job()}---\napiVersion: batch/v1\nkind: Job\nmetadata: {{name: x}}\n")) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [", "is not YAML: "), ("{[1]: 2}", "a key must be a text"), ("a: &x [*x]", "leads into itself"),
        ("a: !!int x", "is not YAML: it holds a value that cannot be read"),
        ("a: " + "[" * 3000 + "]" * 3000, "is not YAML: it is nested too deeply"),
        ("spec:\n  a: 1\n   b: 2", r"^is not YAML: line 3, column 5: .*indent the line as its neighbours$"),
        ("spec:\n  a: {}\n   b: 2", r"^is not YAML: line 3, column 4: .*; indent the line as its neighbours$"),
        ("spec:\n\ta: 1", r"^is not YAML: line 2, column 1: .*; indent with blanks, not with tabs$"),
        ("kind: Pod", r"holds no RLJob \(found: Pod\)"), ("", "found: nothing"),
    ],
)  # fmt: skip
def test_a_text_without_a_job_says_why(text: str, said: str) -> None:
    with pytest.raises(ManifestError, match=said):
        read(text)


@pytest.mark.parametrize(
    ("metadata", "fields"),
    [
        ({"labels": {"queue": "team a"}}, ["metadata.labels.queue"]),
        ({"labels": {"a b": "x"}}, ["metadata.labels.a b"]),
        ({"labels": {"queue": 7}}, ["metadata.labels.queue"]),
        ({"labels": ["queue"]}, ["metadata.labels"]),
        ({"annotations": {"p": 8080}}, ["metadata.annotations.p"]),
        ({"annotations": {"-": "any text at all"}}, ["metadata.annotations.-"]),
        ({"labels": {"a/b": "x", "c": ""}, "annotations": {"Some/Key": "any text at all"}}, []),
        ({"labels": None}, []),
    ],
)
def test_metadata_that_the_api_server_refuses_are_named(metadata: dict[str, Any], fields: list[str]) -> None:
    job = {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": "demo"} | metadata,
        "spec": raw_spec(),
    }
    (found,) = read(yaml.safe_dump(job))
    assert [v.field for v in found.validate().violations] == fields


@pytest.mark.parametrize(
    ("around", "field", "fix"),
    [
        ("evaluation: {everySteps: 2}", "evaluation", "indent it as spec.evaluation"),
        ("x-common: {steps: 3}", "x-common", "remove it"),
        ("metadta: {}", "metadta", "did you mean metadata?"),
    ],
)
def test_a_field_next_to_the_spec_is_refused_as_the_api_server_refuses_it(around: str, field: str, fix: str) -> None:
    (given,) = read(f"{{apiVersion: rljob.dev/v1alpha1, kind: RLJob, metadata: {{name: a}}, spec: {{}}, {around}}}")
    (problem,) = given.problems
    assert (problem.field, problem.rule) == (field, "there is no such field") and fix in problem.fix


def test_a_field_of_the_metadata_that_kubernetes_does_not_have_is_refused() -> None:
    (given,) = read("{apiVersion: rljob.dev/v1alpha1, kind: RLJob, metadata: {name: a, label: {b: c}}, spec: {}}")
    assert [(p.field, p.fix) for p in given.problems] == [("metadata.label", "did you mean metadata.labels?")]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- kind: RLJob", "found: a list; write its objects without `- `"),
        ("spec", 'found: the text "spec"'),
        ("{apiversion: rljob.dev/v1alpha1, kind: RLJob}", "in place of apiversion write apiVersion"),
        ("{apiVersion: rljob.dev/v1alpha1, kind: RLJob, metadate: {name: a}}", "in place of metadate write metadata"),
        (
            "{apiVersion: rljob.dev/v1alpha1, kind: RLJob, metadata: {name: a}, specs: {}}",
            "in place of specs write spec",
        ),
        ("a:\n\u00a0\u00a0b: 1\n  c: 2\n", "line 2 begins with no-break spaces: write blanks"),
    ],
)
def test_a_slip_around_the_spec_is_named(text: str, said: str) -> None:
    with pytest.raises(ManifestError) as error:
        read(text)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("spec", "refused"),
    [
        ({}, True),
        ({"scheduling": {"backend": "builtin"}}, True),
        ({"scheduling": {"backend": "kueue", "queue": "research"}}, False),
        ({"managedBy": "kueue.x-k8s.io/multikueue"}, False),
    ],
)
def test_a_label_queues_no_job(spec: dict[str, Any], refused: bool) -> None:
    """Kueue's own kinds are queued by it, so that people expect it here."""
    labels = {"kueue.x-k8s.io/queue-name": "research"}
    job = {
        "apiVersion": "rljob.dev/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": "a", "labels": labels},
        "spec": spec,
    }
    (manifest,) = read(yaml.safe_dump(job))
    found = [problem for problem in manifest.problems if problem.field == "metadata.labels.kueue.x-k8s.io/queue-name"]
    assert bool(found) is refused
    assert not found or "backend: kueue, queue: research" in found[0].fix
