"""A value that its key cannot have is refused with both, in whatever configuration of whatever system it stands."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from cli.conftest import Rljob
from importer.test_golden_files import CASES, DATA_SETS, HERE, V1
from rljob_api.rules import validate
from rljob_api.yaml_text import documents
from rljob_import import Options
from rljob_import.readers.hydra import UnreadableFile
from rljob_import.report import flow, imported
from rljob_import.shared.values import divisor
from rljob_import.systems import SYSTEMS

Path = tuple[str | int, ...]
SCALARS = st.sampled_from([0, -1, 0.5, 10**15, 1e30, float("inf"), None, "", "a word", True, False])
ODD = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.just("x"), inner), max_leaves=3
)


def tree_of(case: str) -> Any:
    """What is in the file; of a script its overrides, by key."""
    text = (HERE / case).read_text()
    if case.endswith(".yaml"):
        return json.loads(json.dumps(yaml.safe_load(text), default=str))
    values = SYSTEMS[case.split("/")[0]].read(text, CASES[case].environment).values
    return {key: value for key, value in values.items() if not key.startswith(("export.", "launcher."))}


def places(value: Any, path: Path = ()) -> Iterator[Path]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in inner:
        yield (*path, key)
        yield from places(below, (*path, key))


def put(value: Any, path: Path, odd: Any) -> Any:
    if not path:
        return odd
    changed: Any = dict(value) if isinstance(value, dict) else list(value)
    changed[path[0]] = put(value[path[0]], path[1:], odd)
    return changed


def text_of(case: str, path: Path, odd: Any) -> str:
    """The file with another value in one place."""
    if case.endswith(".yaml"):
        return json.dumps(put(TREES[case], path, odd))
    key, *inner = path
    value = put(TREES[case][key], tuple(inner), odd)
    return f"{(HERE / case).read_text().rstrip()} '{key}={json.dumps(value) if value != '' else ''}'\n"


TREES = {case: tree_of(case) for case in CASES}
PLACES = {case: [*places(tree)] for case, tree in TREES.items()}


def options_of(case: str) -> Options:
    sets = yaml.safe_load((HERE / DATA_SETS[case]).read_text()) if case in DATA_SETS else {}
    return Options(**vars(CASES[case]) | {"data_sets": sets})


@pytest.mark.parametrize("system", SYSTEMS)
@given(st.data())
def test_any_value_at_any_key_makes_a_job_of_the_schema_or_is_refused(system: str, data: st.DataObject) -> None:
    case = data.draw(st.sampled_from([case for case in CASES if case.startswith(f"{system}/")]))
    text = text_of(case, data.draw(st.sampled_from(PLACES[case])), data.draw(ODD))
    try:
        found = imported(system, text, "file", options_of(case))
    except UnreadableFile:
        return
    assert all(problem.key and problem.text for problem in found.problems)
    assert bool(found.manifest) is not bool(found.problems)
    if found.manifest:
        document = yaml.safe_load(found.manifest)
        assert validate(document["spec"], document["metadata"]["name"]).spec is not None


@pytest.mark.parametrize(
    ("case", "key", "odd", "said"),
    [
        ("llamafactory/v1-sft.yaml", "cp_size", 0, "0 is no value that this key can have"),
        ("roll/rlvr-moe.yaml", "num_gpus_per_node", 0, "0 is no value that this key can have"),
        ("trinity/ppo-megatron.yaml", "algorithm.repeat_times", 0, "0 is no value that this key can have"),
        ("trinity/ppo-megatron.yaml", "buffer.batch_size", 1e30, "1e+30 is more than 2147483647"),
        ("rlinf/grpo.yaml", "algorithm.loss_agg_func", ["x"], "['x'] is no value that this key can have"),
        ("rlinf/grpo.yaml", "runner.logger.logger_backends", 0.5, "0.5 is no value that this key can have"),
        ("verl/grpo.sh", "algorithm.adv_estimator", ["x"], "['x'] is no value that this key can have"),
        ("llamafactory/lora-dpo.yaml", "output_dir", True, "true is no value that this key can have"),
        ("llamafactory/v1-sft.yaml", "output_dir", False, "false is no value that this key can have"),
        ("roll/rlvr-moe.yaml", "exp_name", True, "true is no value that this key can have"),
        ("trinity/dapo.yaml", "name", ["x"], "['x'] is no value that this key can have"),
        ("roll/rlvr-moe.yaml", "exp_name", {"x": {"y": 1}, "z": 2}, "a mapping is no value that this key can have"),
        ("verl/grpo.sh", "trainer.nnodes", {"x": 1}, "a mapping is no value that this key can have"),
        ("rlinf/grpo.yaml", "actor.optim", 5, "5 is no value that this key can have"),
        ("rlinf/grpo.yaml", "runner.experiment_name", True, "true is no value that this key can have"),
        ("verl/grpo.sh", "trainer.experiment_name", True, "true is no value that this key can have"),
        ("verl/ppo.yaml", "trainer.experiment_name", False, "false is no value that this key can have"),
        ("verl/grpo.sh", "actor_rollout_ref.model.path", True, "true is no value that this key can have"),
        ("verl/grpo.sh", "trainer.nnodes", 0, "would be spec.trainer.nodes = 0, which must be at least 1"),
        (
            "rlinf/grpo.yaml",
            "actor.optim.lr",
            True,
            "would be spec.train.optimizer.learningRate = true, which must be a number",
        ),
    ],
)
def test_a_value_that_cannot_be_is_refused_once_with_its_key(case: str, key: str, odd: Any, said: str) -> None:
    path: Path = (key,) if case.endswith(".sh") else tuple(key.split("."))
    found = imported(case.split("/")[0], text_of(case, path, odd), "file", options_of(case))
    assert [(p.key.split(" = ")[0], p.text) for p in found.problems if p.text == said] == [(key, said)]


@pytest.mark.parametrize("word", ["true", "No", "on", "y", "null"])
def test_a_name_that_yaml_would_read_as_no_text_stays_one(word: str) -> None:
    found = imported("rlinf", text_of("rlinf/grpo.yaml", ("runner", "experiment_name"), word), "file", Options())
    assert yaml.safe_load(found.manifest)["metadata"]["name"] == word.lower()


@pytest.mark.parametrize("text", ["1e5", "1e+30", "-2E3", "1.e2", ".5e1", "1.5e-3"])
def test_a_text_that_kubernetes_would_read_as_a_number_stays_one(text: str) -> None:
    (document,) = documents(f"key: {flow(text)}\nnumber: {flow(1e30)}\n")
    assert document.value == {"key": text, "number": 1e30}


def test_of_several_values_that_cannot_be_one_is_named() -> None:
    text = V1 + "cp_size: 0, dist_config: {ep_size: 0}}"
    keys = {problem.key for problem in imported("llamafactory", text, "file", Options()).problems}
    assert keys and keys <= {"cp_size", "dist_config.ep_size"}


@pytest.mark.parametrize("flag", ["--rows", "--nodes", "--gpus-per-node"])
def test_a_count_of_the_command_line_is_at_least_one(rljob: Rljob, flag: str) -> None:
    assert rljob("import", "verl", "run.sh", flag, "0").code == 2


def test_the_nearest_divisor_is_that_of_a_look_at_every_number() -> None:
    for number in range(1, 130):
        for wanted in (1, 2, 5, 8, 200):
            every = [d for d in range(1, number + 1) if number % d == 0]
            assert divisor(number, wanted) == min(every, key=lambda d: (abs(d - wanted), -d))
    assert divisor(2**31 - 1, 7) == 1
