"""What cannot be imported is said whole, with paths; nothing is left out silently."""

from pathlib import Path

import pytest
import yaml

from cli.conftest import Rljob
from rljob_import import Options
from rljob_import.engine import convert, default_of
from rljob_import.readers.hydra import resolve
from rljob_import.report import imported, repeated
from rljob_import.systems import SYSTEMS
from rljob_import.table import Outcome, Problem

LAUNCH = "python3 -m verl.trainer.main_ppo data.train_files=/data/a.parquet trainer.total_training_steps=5 "
IMPORTS = Path(__file__).with_name("cases")
TABLES = [table for reader in SYSTEMS.values() for table in reader.tables]


def test_all_unknown_keys_are_told_at_once_with_the_nearest_known_ones(rljob: Rljob, tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(LAUNCH + "actor_rollout_ref.rollout.temprature=1 trainer.quux.corge=2 data.max_prompt_lenght=4")
    found = rljob("import", "verl", str(script))
    assert (found.code, found.out) == (1, "")
    assert "rollout.temprature: unknown key; did you mean actor_rollout_ref.rollout.temperature?" in found.err
    assert "trainer.quux.corge: unknown key (or --allow trainer.quux.corge)" in found.err
    assert "did you mean data.max_prompt_length?" in found.err


def test_an_allowed_key_is_passed_over_and_told(rljob: Rljob, tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(
        LAUNCH
        + "actor_rollout_ref.model.path=/data/m trainer.quux.corge=2 algorithm.adv_estimator=rloo actor_rollout_ref.rollout.n=4"
    )
    found = rljob("import", "verl", str(script), "--allow", "trainer.quux.corge", "--claim", "mine")
    assert found.code == 0, found.err
    assert "trainer.quux.corge: passed over, as --allow says" in found.err
    assert yaml.safe_load(found.out)["spec"]["volumes"][0]["source"] == {"persistentVolumeClaim": {"claimName": "mine"}}


def test_a_broken_rule_is_told_beside_the_rljob(rljob: Rljob, tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(
        LAUNCH + "algorithm.adv_estimator=rloo actor_rollout_ref.actor.megatron.pipeline_model_parallel_size=3"
    )
    found = rljob("import", "verl", str(script))
    assert found.code == 1
    assert yaml.safe_load(found.out)["spec"]["trainer"]["parallelism"] == {"pipeline": 3}
    assert "spec.train.samplesPerPrompt = 1" in found.err
    assert "8 is not divisible by tensor x pipeline x context" in found.err


@pytest.mark.parametrize(
    ("system", "text", "said"),
    [
        ("verl", "echo hello", "holds no command with overrides"),
        ("roll", "custom_envs: {}", "write them as an agent or a service"),
        ("roll", "student: {}", "write algorithm.distillation with the teacher as a pool"),
        ("llamafactory", "- a list", "is not a YAML mapping"),
        ("rlinf", "a: [", "is not YAML: line 1, column 5: expected the node content"),
        ("rlinf", "runner: {task_type: embodied}\nenv: {group_name: E}", "is of the task `embodied`"),
        ("rlinf", "env_type: libero", "has no section `runner`"),
        ("rlinf", "runner: {task_type: sft}", "store them as messages, and write a job of `task: sft`"),
        ("roll", "custom_env: {}", "a part that others name in their `defaults`"),
        ("llamafactory", "compute_environment: LOCAL_MACHINE", "configures accelerate"),
        ("llamafactory", "{model_name_or_path: /m, export_dir: /e}", "trains nothing"),
        ("llamafactory", "{model_name_or_path: /m, infer_backend: vllm}", "trains nothing"),
        ("llamafactory", "{model: /m, model_class: llm, peft_config: {export_dir: m}}", "merges a model"),
        ("verl", "python3 -m verl.trainer.main_generation trainer.nnodes=1", "which trains nothing"),
    ],
)
def test_a_file_of_another_form_is_refused(system: str, text: str, said: str, rljob: Rljob, tmp_path: Path) -> None:
    (tmp_path / "file").write_text(text)
    found = rljob("import", system, str(tmp_path / "file"))
    assert (found.code, found.out) == (1, "")
    assert said in found.err


def test_a_value_that_is_no_number_is_told_with_its_key() -> None:
    found = imported("verl", LAUNCH + "data.train_batch_size=many trainer.save_freq=often", "run.sh", Options())
    assert {(p.key, p.text) for p in found.problems} >= {
        ("data.train_batch_size", "many is no number"),
        ("trainer.save_freq", "often is no number"),
    }


def test_values_that_cannot_be_are_told_at_once_whichever_rule_reads_them() -> None:
    """Two of one rule, one of another rule, and one that only its field refuses."""
    text = LAUNCH + "trainer.nnodes=two trainer.n_gpus_per_node=three trainer.save_freq=often "
    found = imported("verl", text + "actor_rollout_ref.actor.optim.lr=fast", "run.sh", Options())
    unfit = 'would be spec.train.optimizer.learningRate = "fast", which must be a number'
    assert sorted((p.key, p.text) for p in found.problems) == [
        ("actor_rollout_ref.actor.optim.lr", unfit),
        ("trainer.n_gpus_per_node", "three is no number"),
        ("trainer.nnodes", "two is no number"),
        ("trainer.save_freq", "often is no number"),
    ]


def test_what_follows_from_a_value_that_cannot_be_is_not_told() -> None:
    """Here that the job has no nodes."""
    found = imported("verl", LAUNCH + "trainer.nnodes=two", "run.sh", Options())
    assert found.problems == (Problem("trainer.nnodes", "two is no number", ("trainer.nnodes",)),)


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.title)
def test_a_switch_is_true_or_false(table) -> None:  # type: ignore[no-untyped-def]
    for row in table.rows:
        if isinstance(row.default, bool):
            found = convert(table, {row.key: "maybe"}, Options(rows=100))
            assert Problem(row.key, "'maybe' must be true or false, without quotes", (row.key,)) in found.problems
            taken = convert(table, {row.key: 1}, Options(rows=100)).problems
            assert not [p for p in taken if "true or false" in p.text], "as other systems read 1"


@pytest.mark.parametrize(
    ("system", "key"),
    [
        ("verl", "actor_rollout_ref.actor.use_kl_loss"),
        ("verl", "reward_model.reward_kwargs.overlong_buffer_cfg.enable"),
        ("verl", "algorithm.use_kl_in_reward"),
        ("trinity", "buffer.explorer_input.taskset.reward_fn_args.enable_overlong_penalty"),
        ("llamafactory", "bf16"),
        ("llamafactory", "overlap_param_gather"),
    ],
)
def test_a_key_that_rules_read_as_a_switch_is_one(system: str, key: str) -> None:
    table = SYSTEMS[system].tables[0]
    assert "must be true or false" in "".join(p.text for p in convert(table, {key: "maybe"}, Options()).problems)


def test_keys_that_stand_twice_are_told_with_their_lines(rljob: Rljob, tmp_path: Path) -> None:
    """Beside what else is wrong. Readers of YAML take the last value without a word."""
    job, sets = tmp_path / "job.yaml", tmp_path / "dataset_info.json"
    job.write_text("model_name_or_path: /m\nstage: sft\ndataset: d\noutput_dir: o\nmax_steps: 4\nmax_steps: many\n")
    found = rljob("import", "llamafactory", str(job))
    assert (found.code, found.out) == (1, "")
    assert "max_steps = 4 and many: stands twice, in lines 5 and 6; keep one of them" in found.err
    assert "max_steps: many is no number" in found.err
    sets.write_text('{"d": {"columns": {"prompt": "a",\n "prompt": "b"}}}')
    found = rljob("import", "llamafactory", str(job), "--dataset-info", str(sets))
    assert "d.columns.prompt = a and b: stands twice, in lines 1 and 2; keep one of them" in found.err


def test_a_key_that_an_anchor_merges_may_be_written_again() -> None:
    text = "base: &base {max_steps: 4}\nrun:\n  <<: *base\n  max_steps: 5\n"
    assert repeated(text) == []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("tensor_parallel_size: many", "many is no number"),
        ("tensor_parallel_size: 1.5", "1.5 is no whole number"),
    ],
)
def test_a_teacher_whose_gpus_cannot_be_counted_is_refused(given: str, said: str) -> None:
    text = (IMPORTS / "trinity/distill.yaml").read_text().replace("tensor_parallel_size: 2", given)
    assert imported("trinity", text, "f", Options()).problems == (
        Problem("explorer.auxiliary_models", said, ("explorer.auxiliary_models",)),
    )


def test_the_gpus_of_the_model_that_teaches_are_those_that_do_not_train() -> None:
    text = (IMPORTS / "trinity/distill.yaml").read_text()
    first = "auxiliary_models:\n    - {engine_num: 4}"
    manifest = imported("trinity", text.replace("auxiliary_models:", first), "f", Options()).manifest
    spec = yaml.safe_load(manifest)["spec"]
    assert spec["pools"][0]["model"] == "/data/large" and spec["trainer"]["processesPerNode"] == 8 - 2 - 2


def test_prompts_are_streamed_where_a_batch_has_none_of_its_own() -> None:
    script = (IMPORTS / "verl/streamed.sh").read_text().replace("async_training.trigger_parameter_sync_step=2", "")
    train = yaml.safe_load(imported("verl", script, "f", Options()).manifest)["spec"]["train"]
    assert (train["promptsPerStep"], train["miniBatches"]) == (64 * 4, 4), "verl publishes after four, by default"


def test_a_task_that_no_rljob_has_is_an_error() -> None:
    found = imported("llamafactory", "{stage: kto, model_name_or_path: /m, dataset: d, output_dir: o}", "f", Options())
    assert [p.key for p in found.problems] == ["stage"]
    assert "sft, dpo, rm, pt" in found.problems[0].text


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.title)
def test_no_given_key_is_dropped_silently(table) -> None:  # type: ignore[no-untyped-def]
    """Every row with a value that no neutral one equals ends in a field, a note or a problem that names it."""
    for row in table.rows:
        key = row.key.replace("*", next(iter(sorted(row.known)), "key"))
        found = convert(table, {key: "a-value"}, Options(rows=100))
        said = [
            *(field.source for field in found.fields.values()),
            *(n.key for n in found.notes),
            *(p.key for p in found.problems),
        ]
        assert any(key in text for text in said), key


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.title)
def test_fields_of_the_tables_are_fields_of_the_spec(table) -> None:  # type: ignore[no-untyped-def]
    from rljob_api.schema.crd import crd

    spec = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    for row in table.rows:
        for path in filter(None, (part.strip() for part in row.field.split(","))):
            node = spec
            for part in path.replace("[]", "").split(".") if path != "metadata.name" else ():
                node = node.get("items", node)
                if node.get("x-kubernetes-preserve-unknown-fields"):
                    break
                assert part in node.get("properties", {}), f"{row.key}: {path}"
                node = node["properties"][part]


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.title)
def test_no_key_is_in_a_table_twice(table) -> None:  # type: ignore[no-untyped-def]
    names = [name for row in table.rows for name in (row.key, *row.also)]
    assert sorted({name for name in names if names.count(name) > 1}) == []


def test_interpolations_reach_keys_the_environment_and_arithmetic() -> None:
    tree = {
        "a": {"b": 4, "c": "${.b}", "d": "${a.b}-${oc.env:N,7}", "e": "${multiply:${a.b}, 3}"},
        "f": "${oc.select:no.such,${not:${g}}}",
        "g": False,
        "h": "${no.key}",
    }
    found, lost = resolve(tree, {"N": "8"})
    assert found == {"a": {"b": 4, "c": 4, "d": "4-8", "e": 12}, "f": True, "g": False, "h": None}
    assert lost == ["h: ${no.key}: there is no such key in the file"]


def test_defaults_of_the_spec_are_known() -> None:
    assert default_of("train.optimizer.beta2") == 0.95
    assert default_of("critic.optimizer.learningRate") == 1e-5
    assert default_of("train.steps") is None


def test_outcomes_are_named_as_the_page_names_them() -> None:
    assert [outcome.value for outcome in Outcome] == ["implied", "changed", "not expressible"]


def test_a_key_without_a_line_of_its_own_is_said_to_decide_about_what_would_differ_without_it() -> None:
    """Whether it decides about anything depends on the other keys, so no table can say it."""
    text = LAUNCH + "actor_rollout_ref.model.path=/data/m actor_rollout_ref.rollout.n=4 trainer.project_name=mine "
    placed = "trainer.default_local_dir=/data/run trainer.logger=[console]"
    found = [imported("verl", text + more, "run.sh", Options()).report for more in ("", placed)]
    assert "trainer.project_name = mine: decides about checkpoint.path" in found[0]
    assert "trainer.project_name = mine: the job is the same without it" in found[1]


def test_a_system_is_found_as_its_users_write_it(rljob: Rljob) -> None:
    """Not as a wrong argument: what is wrong is the file."""
    for name in ("LLaMA-Factory", "llama_factory", "Trinity-RFT", "RLinf"):
        screen = rljob("import", name, "/nowhere.yaml")
        assert (screen.code, screen.err) == (1, "error: cannot read /nowhere.yaml: No such file or directory\n")
    assert rljob("import", "openrlhf", "/nowhere.yaml").code == 2


def test_data_sets_of_llama_factorys_v1_are_read_from_yaml(rljob: Rljob, tmp_path: Path) -> None:
    """The file that `train_dataset` names; another one is refused."""
    job, sets = tmp_path / "job.yaml", tmp_path / "sets.yaml"
    job.write_text("{model: /data/m, model_class: llm, train_dataset: data/sets.yaml, max_steps: 5, output_dir: o}")
    assert "give it with --dataset-info" in rljob("import", "llamafactory", str(job)).err
    sets.write_text("chats: {path: data/chats.json, source: local, converter: openai}")
    found = rljob("import", "llamafactory", str(job), "--dataset-info", str(sets))
    data = yaml.safe_load(found.out)["spec"]["data"]
    assert (data["train"], data["format"]) == (["/data/data/chats.json"], "messages")
    sets.write_text("chats: {file_name: chats.json}")
    assert "chats has no path" in rljob("import", "llamafactory", str(job), "--dataset-info", str(sets)).err


def test_a_workflow_of_trinitys_with_several_turns_is_said_to_need_an_agent() -> None:
    """Whatever else the file lacks."""
    text = "{mode: both, buffer: {explorer_input: {taskset: {path: /data/a.jsonl, default_workflow_type: alfworld_workflow}}}}"
    assert (
        "alfworld_workflow: a prompt is answered in a single turn: write the workflow as an agent"
        in imported("trinity", text, "file", Options()).report
    )


UNREADABLE = {
    "a: 2024-13-45": "month must be in 1..12",
    "a: !!int x": "invalid literal for int()",
    f"a: {'7' * 5000}": "4300 digits",
    "a: &x [*x]": "an alias leads into itself",
    f"a: {'[' * 1000}{']' * 1000}": "is nested too deeply",
    "a: [": "is not YAML",
}


@pytest.mark.parametrize(("text", "said"), UNREADABLE.items(), ids=lambda given: given[:16])
def test_yaml_that_cannot_be_read_is_an_error_and_no_traceback(
    rljob: Rljob, tmp_path: Path, text: str, said: str
) -> None:
    file = tmp_path / "given.yaml"
    file.write_text(text)
    for system in ("roll", "trinity", "llamafactory", "rlinf"):
        found = rljob("import", system, str(file))
        assert found.code == 1 and said in found.err, system
    if said != "is not YAML":  # such a file of verl is a script
        assert said in rljob("import", "verl", str(file)).err
    of_sets = rljob("import", "llamafactory", str(IMPORTS / "llamafactory/moe-sft.yaml"), "--dataset-info", str(file))
    assert of_sets.code == 1 and said in of_sets.err


def test_an_override_that_looks_like_a_date_is_text(rljob: Rljob, tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(
        LAUNCH + f"actor_rollout_ref.model.path=/data/m trainer.experiment_name=2024-13-45 a.b={'7' * 5000}"
    )
    found = rljob("import", "verl", str(script))
    assert found.code == 1 and "a.b: unknown key" in found.err
