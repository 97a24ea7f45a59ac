"""What no tool checks by itself."""

import ast
import re
import subprocess
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import takewhile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TRACKED = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
SOURCES = [ROOT / f for f in TRACKED if f.endswith(".py") and (ROOT / f).is_file()]


@cache
def parsed(source: Path) -> ast.Module:
    """Once for all tests."""
    return ast.parse(source.read_text())


def test_operator_is_a_source_root_and_not_a_package() -> None:
    """A package of that name would shadow the standard library's operator module."""
    assert not (ROOT / "operator/__init__.py").exists()


def test_no_lock_file_names_a_package_registry() -> None:
    assert not (ROOT / "uv.lock").exists()
    for lock in [*ROOT.glob("images/*/*.txt"), *ROOT.glob("tests/*.txt")]:
        assert "://" not in lock.read_text(), lock


Function = ast.FunctionDef | ast.AsyncFunctionDef
PACKAGES = sorted(
    {p.parts[0:2] for p in (s.relative_to(ROOT) for s in SOURCES) if p.parts[0] in ("operator", "trainer")}
)
LONGEST, USUAL = 60, 30
"""Lines of any function, and of 95 of 100."""


@cache
def functions_of(source: Path) -> tuple[tuple[int, str], ...]:
    """Lines of every function of a file, and where it is."""
    found = [node for node in ast.walk(parsed(source)) if isinstance(node, Function)]
    where = source.relative_to(ROOT)
    return tuple(((node.end_lineno or 0) - node.lineno + 1, f"{where}: {node.name}") for node in found)


def functions(sources: Iterable[Path]) -> Iterator[tuple[int, str]]:
    """Of all these files."""
    for source in sources:
        yield from functions_of(source)


LONGEST_FILE = 350
"""Lines of a file of the product."""


def test_no_file_of_the_product_is_long() -> None:
    product = [f for f in TRACKED if f.startswith(("operator/", "trainer/")) and f.endswith((".py", ".c", ".h", ".js"))]
    lengths = {f: len((ROOT / f).read_text().splitlines()) for f in product if (ROOT / f).is_file()}
    assert len(lengths) > 500
    assert {f: lines for f, lines in lengths.items() if lines > LONGEST_FILE} == {}


def test_no_function_is_long() -> None:
    assert [found for found in functions(SOURCES) if found[0] > LONGEST] == []


@pytest.mark.parametrize("package", [*PACKAGES, ("e2e",), ("tests",)], ids="/".join)
def test_nearly_all_functions_of_a_package_are_short(package: tuple[str, ...]) -> None:
    found = sorted(functions(s for s in SOURCES if s.relative_to(ROOT).parts[: len(package)] == package))
    assert len(found) > 50
    assert found[len(found) * 95 // 100][0] <= USUAL, found[len(found) * 95 // 100 :]


PRODUCT = [source for source in SOURCES if source.relative_to(ROOT).parts[0] in ("operator", "trainer")]


def nodes_of[N: ast.AST](
    sources: Iterable[Path], kind: type[N], pattern: str
) -> Iterator[tuple[str, N, list[ast.AST]]]:
    """All nodes of a kind that begin on a line with the pattern: where each is, itself, and what it is part of, the nearest first."""
    for source in sources:
        lines = {i for i, line in enumerate(source.read_text().splitlines(), 1) if re.search(pattern, line)}
        if not lines:
            continue
        nodes = list(ast.walk(parsed(source)))
        parents = {child: node for node in nodes for child in ast.iter_child_nodes(node)}
        for node in nodes:
            if isinstance(node, kind) and node.lineno in lines:  # type: ignore[attr-defined]
                around = [parents[node]]
                while around[-1] in parents:
                    around.append(parents[around[-1]])
                yield f"{source.relative_to(ROOT)}:{node.lineno}", node, around  # type: ignore[attr-defined]


def is_guard(around: list[ast.AST]) -> bool:
    """Whether a walrus there is what an if, elif or while asks: alone, negated, or compared with something."""
    asked = around[1] if isinstance(around[0], ast.Compare | ast.UnaryOp) else around[0]
    return isinstance(asked, ast.If | ast.While)


def test_a_walrus_is_what_an_if_or_a_while_asks_and_no_part_of_a_larger_expression() -> None:
    walruses = list(nodes_of(PRODUCT, ast.NamedExpr, ":="))
    assert len(walruses) > 20
    assert [where for where, _, around in walruses if not is_guard(around)] == []


STORES = (ast.Assign, ast.AnnAssign, ast.arguments, ast.Return, ast.Yield, ast.IfExp, ast.BoolOp)
"""What gives a function to a name, a parameter or a caller: it deserves a name of its own."""


def is_folded(function: ast.Lambda, parent: ast.AST) -> bool:
    wrapped = isinstance(parent, ast.Call) and ast.unparse(parent.func) in ("partial", "functools.partial")
    inside = any(isinstance(node, ast.Lambda | ast.NamedExpr) for node in ast.walk(function.body))
    return isinstance(parent, STORES) or wrapped or inside or bool(function.args.defaults + function.args.kw_defaults)


def test_a_lambda_is_an_argument_or_an_entry_of_a_table_and_no_function_that_deserves_a_name() -> None:
    lambdas = list(nodes_of(PRODUCT, ast.Lambda, "lambda"))
    assert len(lambdas) > 50
    assert [where for where, function, around in lambdas if is_folded(function, around[0])] == []


LOOPS, FUNCTIONS = (ast.For, ast.AsyncFor, ast.While), (ast.FunctionDef, ast.AsyncFunctionDef)
SHORT, ENDLESS = 0.2, 30.0
"""Seconds: shorter ones cost little, and from the longer ones nobody wakes up."""


def is_fixed_sleep(call: ast.Call, around: list[ast.AST]) -> bool:
    """Whether it sleeps for a constant time, and is no step of a loop, which waits for a condition."""
    if ast.unparse(call.func) not in ("time.sleep", "asyncio.sleep"):
        return False
    match call.args:
        case [ast.Constant(float() | int() as seconds)] if SHORT <= seconds < ENDLESS:
            inside = takewhile(lambda node: not isinstance(node, FUNCTIONS), around)
            return not any(isinstance(node, LOOPS) for node in inside)
    return False


def test_a_test_that_sleeps_for_a_fixed_time_says_why_it_waits_for_no_condition() -> None:
    tests = [source for source in SOURCES if source.relative_to(ROOT).parts[0] in ("tests", "e2e")]
    sleeps = [
        where for where, call, around in nodes_of(tests, ast.Call, r"\.sleep\([\d.]+\)") if is_fixed_sleep(call, around)
    ]
    assert len(sleeps) > 5
    assert [where for where in sleeps if " # " not in line_of(where)] == []


def line_of(where: str) -> str:
    file, _, number = where.rpartition(":")
    return (ROOT / file).read_text().splitlines()[int(number) - 1]


NAMED_ALIKE = {"SenderEnd", "WorkerEnd", "Trajectory", "Prompt"}
"""The ends of each transport of weights, and what a user's agents get and give in place of the trainer's own."""


def type_names(source: Path) -> Iterator[tuple[str, str]]:
    """Public classes and aliases of types of a module, by name, with what each is."""
    for node in parsed(source).body:
        if isinstance(node, ast.ClassDef):
            yield node.name, f"class of {source}"
        elif isinstance(node, ast.TypeAlias):
            yield node.name.id, ast.unparse(node.value)
        elif isinstance(node, ast.Assign):
            aliases = [t.id for t in node.targets if isinstance(t, ast.Name) and re.match(r"[A-Z][a-z]", t.id)]
            yield from ((alias, ast.unparse(node.value)) for alias in aliases)


PROGRAMS = {
    "operator": (("operator/rljob_api", "operator/rljob_placement", "operator/rljob_operator"), set()),
    "plugin": (
        ("operator/rljob_api", "operator/rljob_placement", "operator/rljob_import", "operator/kubectl_rljob"),
        set(),
    ),
    "trainer": (("operator/rljob_api", "trainer"), NAMED_ALIKE),
}
"""What is read together, and the names that are alike on purpose."""


@pytest.mark.parametrize(("packages", "alike"), PROGRAMS.values(), ids=PROGRAMS)
def test_no_name_of_a_type_means_two_things_in_a_program(packages: tuple[str, ...], alike: set[str]) -> None:
    """So that a name in a log, a traceback, a signature or a question says which one it is."""
    meanings: dict[str, set[str]] = {}
    for source in SOURCES:
        if any(source.is_relative_to(ROOT / package) for package in packages):
            for name, meaning in type_names(source):
                meanings.setdefault(name, set()).add(meaning)
    assert len(meanings) > 200
    assert {name for name, of_name in meanings.items() if len(of_name) > 1} == alike


KUBERNETES_REASONS = {
    *("ContainerCreating", "CrashLoopBackOff", "CreateContainerConfigError", "ImagePullBackOff"),
    *(
        "Error",
        "Evicted",
        "FailedCreate",
        "FailedMount",
        "FailedScheduling",
        "Forbidden",
        "Invalid",
        "NamespaceTerminating",
        "NodeAffinity",
        "OOMKilled",
    ),
    *("UnexpectedAdmissionError", "Unschedulable"),
}


def literal_reasons(source: Path) -> Iterator[str]:
    """Single capitalised words that are given as a `reason`."""
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Dict):
            pairs = [(k.value, v) for k, v in zip(node.keys, node.values, strict=True) if isinstance(k, ast.Constant)]
        elif isinstance(node, ast.Call):
            pairs = [(k.arg, k.value) for k in node.keywords]
        else:
            continue
        for name, value in pairs:
            if name in ("reason", "outcomeReason", "outcome_reason") and isinstance(value, ast.Constant):
                yield from re.findall(r"^[A-Z][A-Za-z]+$", str(value.value))


def test_fixtures_take_reasons_from_the_contract() -> None:
    """A literal would stay when the reason is renamed, and the test would speak of what no longer exists."""
    tests = [s for s in SOURCES if s.relative_to(ROOT).parts[0] in ("tests", "e2e", "benchmarks")]
    found = {(str(s.relative_to(ROOT)), reason) for s in tests for reason in literal_reasons(s)}
    assert {(where, reason) for where, reason in found if reason not in KUBERNETES_REASONS} == set()
