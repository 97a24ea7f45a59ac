"""What a task does not read is refused by its name, and what it reads is accepted."""

from typing import Any

import pytest

from api.specs import make_spec, raw_spec
from rljob_api.rules import validate
from rljob_api.rules.engine import field
from rljob_api.rules.task import READERS, SUPERVISED
from rljob_api.sizing.layout import Amounts, required_servers, rollout_pods, servers_per_pod
from rljob_api.sizing.replica import longest_context
from rljob_api.spec import RLJobSpec

VALUES: dict[str, Any] = {
    "model.megatronCheckpoint": "/data/checkpoint",
    "model.lora": {"rank": 8},
    "data.custom": {"path": "/data/custom.py"},
    "data.format": "messages",
    "data.maxPromptTokens": 16,
    "data.maxTokens": 64,
    "rollout.exact": True,
    "data.chatTemplate": {"texts": True},
    "data.generated": [{"path": "/data/a.jsonl", "library": "verifiers", "environment": "a", "size": 1}],
    "data.overlong": "cut",
    "data.lossOn": "all",
    "algorithm": {"entropyCoefficient": 0.1},
    "sft": {"aggregation": "sequenceMean"},
    "dpo": {"beta": 0.2},
    "train.samplesPerStep": 8,
    "train.promptsPerStep": 8,
    "train.samplesPerPrompt": 4,
    "train.epochsPerStep": 2,
    "train.staleness": 1,
    "train.overSampling": 1.5,
    "train.partialRollouts": {},
    "train.batches": {"record": True},
    "evaluation.samplesPerPrompt": 2,
    "evaluation.sampling": {"maxTokens": 4},
    "evaluation.sets": [{"name": "a", "files": ["/data/a.parquet"]}],
    "evaluation.correctAbove": 0.9,
    "critic": {},
    "reference": {"offload": False},
    "rollout.placement": "colocated",
    "rollout.serversPerGpu": 2,
    "rollout.minReplicas": 0,
    **dict.fromkeys((f"rollout.{name}" for name in ("nodes", "tensorParallel", "pipelineParallel")), 2),
    "rollout.dataParallel": 2,
    "rollout.expertParallel": True,
    "rollout.interrupt": "continue",
    "rollout.sampling": {"maxTokens": 4},
    "rollout.speculation": {"method": "ngram"},
    "rollout.agent": {"python": {"path": "/data/agent.py"}, "maxTurns": 2, "maxTokens": 8},
    "rollout.vllmArgs": {"max-num-seqs": 4},
    "rollout.shmSize": "2Gi",
    "rollout.template": {"labels": {"team": "a"}},
    "pools": [{"name": "judge", "model": "/data/judge"}],
    "environments": [{"name": "python"}],
    "service": {"maxModels": 3},
    "model.multiTokenPrediction": True,
    "model.source": "hf://a/b@0123456789012345678901234567890123456789",
    **{f"data.{name}": ["/data/other.parquet"] for name in ("train", "validation")},
    "data.sources": [{"source": "hf://datasets/a/b@main", "path": "/data/fetched"}],
    "data.weights": [1.0],
    "data.shuffle": False,
    "data.seed": 3,
    "train.steps": 3,
    "train.epochs": 2.0,
    "train.miniBatches": 2,
    "train.optimizer": {"learningRate": 0.1},
    "train.onNonFinite": "skip",
    "evaluation.everySteps": 4,
    "evaluation.only": True,
    **dict.fromkeys(
        (f"checkpoint.{name}" for name in ("everySteps", "keepLast", "exportEverySteps", "keepExports")), 7
    ),
    "checkpoint.resume": "required",
    "checkpoint.resumeFrom": "/data/run/global_step_1",
    **dict.fromkeys((f"checkpoint.{name}" for name in ("asynchronous", "exportHuggingFace")), False),
    "checkpoint.upload": "s3://bucket/run",
    "trainer.overlap": {"gradReduce": True},
    "trainer.offload": {"optimizer": True},
}
"""By the paths of READERS, another value than the default; a column's name where there is none."""


def written(path: str, value: Any) -> dict[str, Any]:
    first, _, rest = path.partition(".")
    return {first: {rest: value} if rest else value}


def test_an_argument_that_belongs_to_the_trainer_reaches_no_template() -> None:
    template = {"arguments": {"enable_thinking": False, "tools": [], "tokenize": True}}
    found = validate(raw_spec(data={"chatTemplate": template}), "demo").violations
    assert [v.field for v in found] == [f"spec.data.chatTemplate.arguments.{name}" for name in ("tokenize", "tools")]


@pytest.mark.parametrize("path", READERS)
@pytest.mark.parametrize("task", ["rl", *SUPERVISED, "service"])
def test_a_field_is_refused_by_the_tasks_that_do_not_read_it(task: str, path: str) -> None:
    found = validate(raw_spec(task=task, **written(path, VALUES.get(path, "other"))), "demo").violations
    refused = [v for v in found if v.field == f"spec.{path}" and "does not read it, only" in v.rule]
    assert len(refused) == (task not in READERS[path])
    for violation in refused:
        assert violation.rule.startswith(f"task {task} ")
        assert violation.value


def test_the_smallest_service_is_valid_and_has_rollouts_and_no_data() -> None:
    found = validate(raw_spec(task="service"), "demo")
    assert found.violations == () and found.spec
    assert found.spec.pod_counts == {"trainer": 1, "rollout": 1, "gateway": 1}
    assert (Amounts.of(found.spec).longest, longest_context(found.spec)) == (64, 64)


@pytest.mark.parametrize("task", SUPERVISED)
def test_the_smallest_supervised_spec_is_valid_and_has_no_rollouts(task: str) -> None:
    raw = raw_spec(task=task)
    assert validate(raw, "demo").violations == ()
    spec = RLJobSpec.model_validate(raw)
    assert (rollout_pods(spec), required_servers(spec), servers_per_pod(spec)) == (0, 0, 0)


@pytest.mark.parametrize("task", ["rl", *SUPERVISED])
def test_epochs_stand_in_place_of_steps_in_every_task(task: str) -> None:
    raw = raw_spec(task=task, train={"steps": None, "epochs": 1.5})
    assert validate(raw, "demo").violations == ()
    assert Amounts.of(RLJobSpec.model_validate(raw)).optimizer_steps is None
    (missing,) = validate(raw_spec(task=task, train={"steps": None}), "demo").violations
    assert (missing.field, missing.value) == ("spec.train.steps", "none")


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"dpo": {"loss": "ipo", "labelSmoothing": 0.1}}, "spec.dpo.labelSmoothing"),
        ({"dpo": {"margin": 0.5}}, "spec.dpo.margin"),
        ({"dpo": {"loss": "orpo", "sftCoefficient": 1}}, "spec.dpo.sftCoefficient"),
        ({"dpo": {"loss": "simpo"}, "reference": {"path": "/data/other"}}, "spec.reference"),
    ],
)
def test_an_option_of_another_preference_loss_is_refused(changes: dict[str, Any], path: str) -> None:
    assert [v.field for v in validate(raw_spec(task="dpo", **changes), "demo").violations] == [path]


def test_a_reference_may_be_chosen_for_a_preference_loss_that_has_one() -> None:
    assert validate(raw_spec(task="dpo", reference={"path": "/data/other"}), "demo").violations == ()
    assert make_spec(task="dpo").has_reference
    assert not make_spec(task="dpo", dpo={"loss": "orpo"}).has_reference
    assert not make_spec(task="sft").has_reference


def test_pairs_count_twice_where_sequences_are_counted() -> None:
    sft, dpo = (Amounts.of(make_spec(task=task, train={"miniBatches": 2})) for task in ("sft", "dpo"))
    assert (sft.groups_per_step, sft.samples_per_step, sft.samples_per_mini_batch, sft.longest) == (4, 4, 2, 32)
    assert (dpo.groups_per_step, dpo.samples_per_step, dpo.samples_per_mini_batch, dpo.longest) == (4, 8, 4, 32)


def test_every_field_in_the_table_exists() -> None:
    spec = make_spec()
    for path in READERS:
        field(path).of(spec)
