"""A field that there is not: what was meant."""

from typing import Any

import pytest

from api.specs import raw_spec
from rljob_api.rules import validate
from rljob_api.rules.fields import HINTS, THEIRS, meant, paths
from rljob_api.rules.words import ADVICE, WORDS


@pytest.mark.parametrize(
    ("path", "fix"),
    [
        ("rolout", "did you mean rollout?"),
        ("train.step", "did you mean steps?"),
        ("rollout.sampling.max_tokens", "write maxTokens"),
        ("rewards.0.datasource", "write dataSource"),
        ("epochs", "it belongs to spec.train.epochs"),
        ("rollout.temperature", "it belongs to spec.rollout.sampling.temperature"),
        ("evaluation.temperature", "it belongs to spec.evaluation.sampling.temperature"),
        ("trainer.nodeSelector", "it belongs to spec.trainer.template.nodeSelector"),
        (
            "nodeSelector",
            "it belongs to spec.trainer.template.nodeSelector or spec.rollout.template.nodeSelector or spec.pools.template.nodeSelector",
        ),
        ("reference.nodeSelector", "it belongs to spec.reference.template.nodeSelector"),
        ("learning_rate", "it belongs to spec.train.optimizer.learningRate or spec.critic.optimizer.learningRate"
            " or spec.rollout.speculation.learningRate"),
        ("train.lr", "it is called spec.train.optimizer.learningRate here"),
        ("rollout.n", "it is called spec.train.samplesPerPrompt here"),
        ("algorithm.kl_coef", "it is called spec.algorithm.kl.coefficient here"),
        ("algorithm.adv_estimator", "it is called spec.algorithm.advantage here"),
        ("algorithm.clipRatioHigh", "it is called spec.algorithm.clip.high here"),
        ("trainer.tensor_model_parallel_size", "it is called spec.trainer.parallelism.tensor here"),
        ("trainer.tensorParallel", "it is called spec.trainer.parallelism.tensor here"),
        ("reference.tensorParallel", "it is called spec.reference.parallelism.tensor here"),
        ("critic.expert_model_parallel_size", "it is called spec.critic.parallelism.expert here"),
        ("rewards.0.model.gpus_per_node", "it is called spec.rewards.model.processesPerNode here"),
        ("gpus_per_node", "it is called spec.trainer.processesPerNode here"),
        ("actor_train", "it is called spec.trainer here"),
        ("rollout.tensor_model_parallel_size", "it is called spec.rollout.tensorParallel here"),
        ("train.train_batch_size", "it is called spec.train.promptsPerStep or spec.train.samplesPerStep here"),
        ("train.learnin_rate", "did you mean spec.train.optimizer.learningRate?"),
        ("train.mini_batch_size", "set the number of mini-batches of a step, spec.train.miniBatches, in place of their size"),
        ("rollout.gpu_memory_utilization", "set gpu-memory-utilization in spec.rollout.vllmArgs"),
        ("trainer.megatron", "it is called spec.trainer.transformerConfig here"),
        ("trainer.megatronArgs", "it is called spec.trainer.transformerConfig here"),
        ("trainer.override_transformer_config", "it is called spec.trainer.transformerConfig here"),
        ("critic.megatron", "it is called spec.critic.transformerConfig here"),
        ("trainer.nnodes", "it is called spec.trainer.nodes here"),
        ("trainer.replicas", "it is called spec.trainer.nodes here"),
        ("replicas", "it belongs to spec.rollout.replicas or spec.pools.replicas"),
        ("volumeMounts", "it is called spec.volumes here"),
        ("namespace", "write it in metadata"),
        ("algorithm.beta", "it is called spec.algorithm.kl.coefficient here"),
        ("train.num_iterations", "it is called spec.train.epochsPerStep here"),
        ("rewards.0.reward_weights", "it is called spec.rewards.weight here"),
        *((path, HINTS["reportto"]) for path in ("logger", "trainer.logger", "train.report_to", "wandb")),
        *((path, HINTS["strategyargs"]) for path in ("trainer.fsdp", "deepspeed")),
        (
            "volumes.0.persistentVolumeClaim",
            "write it in `source`, for example source: {persistentVolumeClaim: {claimName: NAME}}",
        ),
        ("rewards.0.python.name", "it is called spec.rewards.python.function here"),
        ("train.optimizer.name", ""),
        ("rollout.name", ""),
        ("trainer.flavour", ""),
        ("trainer.path", ""),
    ],
)  # fmt: skip
def test_what_was_meant_by_an_unknown_field(path: str, fix: str) -> None:
    assert meant([int(key) if key.isdigit() else key for key in path.split(".")]).fix == fix


@pytest.mark.parametrize("word", ["topP", "top_p", "top-p", "topK", "min_p"])
def test_sampling_that_changes_the_distribution_says_why_it_is_not_there(word: str) -> None:
    (found,) = validate(raw_spec(rollout={"sampling": {"maxTokens": 8, word: 0.9}}), "demo").violations
    assert (found.field, found.rule) == (f"spec.rollout.sampling.{word}", "there is no such field")
    assert found.fix.startswith("remove it: training compares probabilities of the whole distribution")


def test_gpus_by_number_and_strategies_by_name_say_what_to_write_in_their_place() -> None:
    roles = {"reference": {"deviceMapping": "list(range(0,8))", "strategyArgs": {"strategyName": "megatron_infer"}}}
    fixes = [v.fix for v in validate(raw_spec(**roles), "demo").violations if v.rule == "there is no such field"]
    assert len(fixes) == 2
    assert fixes[0].startswith("say how many GPUs in place of which: nodes and processesPerNode")
    assert fixes[1].startswith("remove it: gangs compute with Megatron, in the layout of their field parallelism")


def test_the_words_of_others_lead_to_fields_that_there_are() -> None:
    assert WORDS.keys() - set(paths()) == set()
    assert (THEIRS.keys() & HINTS.keys()) == set()
    assert len(HINTS) == len(ADVICE)


@pytest.mark.parametrize(
    "changes",
    [
        {"train": {"steps": None, "step": 5}},
        {"train": {"steps": None}, "epochs": 2},
        {"model": None, "modle": {"path": "/m"}},
        {"train": {"promptsPerStep": None, "miniBatches": 3, "train_batch_size": 30}},
        {"algorithm": {"advantage": "gae", "kl": {}}, "critc": {}},
        {"rollout": {"minReplicas": 2, "num_engines": 2}},
        {"train": {"steps": 10, "staleness": 1}, "algorithm": {"tis": "token"}},
        {"learning_rate": 1e-6},
        {"train": {"critic_lr": 1e-6}},
        {"algorithm": {"advantage": "gae"}, "train": {"critic_lr": 1e-6}},
        {"train": {"lora_rank": 8}},
        {"algorithm": {"filter_groups": True}},
        {"max_turns": 8},
    ],
    ids=str,
)
def test_what_is_there_under_another_name_is_not_told_again_as_missing(changes: dict[str, Any]) -> None:
    found = validate(raw_spec(**changes), "demo").violations
    assert [v.rule for v in found] == ["there is no such field"]


def test_a_field_that_is_there_under_both_names_is_still_judged() -> None:
    found = validate(raw_spec(train={"miniBatches": 3, "num_minibatches": 2}), "demo").violations
    assert [v.field for v in found] == ["spec.train.num_minibatches", "spec.train.miniBatches"]
