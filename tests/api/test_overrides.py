"""`--set` puts a value where a file would have it, and nothing else."""

import pytest

from api.specs import raw_spec
from rljob_api.manifest import Override, OverrideError, applied, read
from rljob_api.rules import validate

SPEC = {"a": {"b": 1, "c": [10, {"d": 2}]}, "e": "x"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a.b=5", {"a": {"b": 5, "c": [10, {"d": 2}]}, "e": "x"}),
        ("spec.a.b=5", {"a": {"b": 5, "c": [10, {"d": 2}]}, "e": "x"}),
        ("e='5'", {"a": SPEC["a"], "e": "5"}),
        ("e=1e-6", {"a": SPEC["a"], "e": 1e-6}),
        ("e=a=b", {"a": SPEC["a"], "e": "a=b"}),
        ("e=", {"a": SPEC["a"], "e": None}),
        ("a={b: [1, true]}", {"a": {"b": [1, True]}, "e": "x"}),
        ("a.c[0]=3", {"a": {"b": 1, "c": [3, {"d": 2}]}, "e": "x"}),
        ("a.c[1].d=3", {"a": {"b": 1, "c": [10, {"d": 3}]}, "e": "x"}),
        ("a.c[2]=3", {"a": {"b": 1, "c": [10, {"d": 2}, 3]}, "e": "x"}),
        ("f.g[0][0].h=3", SPEC | {"f": {"g": [[{"h": 3}]]}}),
        (r"a.kubernetes\.io/arch=arm64", {"a": SPEC["a"] | {"kubernetes.io/arch": "arm64"}, "e": "x"}),
    ],
)  # fmt: skip
def test_a_value_is_put_at_its_path(text: str, expected: dict) -> None:
    assert applied(SPEC, [Override.of(text)]) == expected
    assert SPEC == {"a": {"b": 1, "c": [10, {"d": 2}]}, "e": "x"}


def test_later_values_win() -> None:
    assert applied({}, map(Override.of, ("a.b=1", "a.c=2", "a.b=3"))) == {"a": {"b": 3, "c": 2}}


@pytest.mark.parametrize("text", ["a.b", "=1", "a..b=1", ".a=1", "a.=1", "a[x]=1", "a[0=1", "[0]=1", "a[0]b=1"])
def test_what_is_no_path_and_value_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(OverrideError) as error:
        Override.of(text)
    assert str(error.value).startswith(f"--set {text}: is no path and value; write PATH=VALUE")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("e.f=1", '--set e.f=1: spec.e = "x": is not an object; write the whole value of it'),
        ("a[0]=1", '--set a[0]=1: spec.a = {"b": 1, "c": [10, {"d": 2}]}: is not a list; write the whole value of it'),
        ("a.c[3]=1", '--set a.c[3]=1: spec.a.c = [10, {"d": 2}]: has 2 entries; the next one is [2]'),
    ],
)
def test_a_path_through_something_else_says_what_is_there(text: str, message: str) -> None:
    with pytest.raises(OverrideError) as error:
        applied(SPEC, [Override.of(text)])
    assert str(error.value) == message


def test_a_value_that_is_not_yaml_is_refused() -> None:
    with pytest.raises(OverrideError, match=r"^--set a=\[: the value is not YAML: line 1, column 2: "):
        Override.of("a=[")


def test_an_unknown_path_is_the_same_message_as_in_the_file() -> None:
    in_file = validate(raw_spec(train={"lr": 1e-6, "miniBatches": 3}), "demo").violations
    spec = applied(raw_spec(), map(Override.of, ("train.lr=1e-6", "train.miniBatches=3")))
    assert validate(spec, "demo").violations == in_file != ()


def test_every_job_of_a_file_gets_the_values() -> None:
    text = "\n---\n".join(
        f"{{apiVersion: rljob.dev/v1alpha1, kind: RLJob, metadata: {{name: {name}}}, spec: {{image: i}}}}"
        for name in "ab"
    )
    assert [m.spec for m in read(text, ["train.steps=3"])] == [{"image": "i", "train": {"steps": 3}}] * 2
