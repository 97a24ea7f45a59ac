"""Paths in the pods: where they may lead, which data files have a reader, and which volume holds them."""

from typing import Any

import pytest

from api.specs import make_spec, raw_spec
from rljob_api.rules import validate
from rljob_api.rules.data import DATA_SUFFIXES
from rljob_api.rules.volumes import lost_checkpoints, outside_volumes, paths
from rljob_trainer.data.files import READERS
from rljob_trainer.data.tables import OPENERS

VOLUME = {"name": "data", "mountPath": "/data", "source": {"emptyDir": {}}}
EVERYWHERE: dict[str, Any] = {
    "model": {"path": "/p/0", "megatronCheckpoint": "/p/1", "lora": {"path": "/p/2"}},
    "data": {
        "train": ["/p/3"], "validation": ["/p/4"], "sources": [{"source": "hf://a/b", "path": "/p/5"}], "chatTemplate": {"path": "/p/6"},
    },
    "rewards": [{"python": {"path": "/p/7"}}, {"model": {"path": "/p/8"}}],
    "algorithm": {"loss": "python", "lossFunction": {"path": "/p/9", "function": "f"}},
    "train": {"batches": {"replay": "/p/10"}},
    "reference": {"path": "/p/11", "megatronCheckpoint": "/p/12"},
    "critic": {"path": "/p/13", "megatronCheckpoint": "/p/14"},
    "rollout": {"agent": {"python": {"path": "/p/15"}, "maxTurns": 2, "maxTokens": 8}},
    "evaluation": {"sets": [{"name": "a", "files": ["/p/16"]}]},
    "pools": [{"name": "judge", "model": "/p/17"}],
    "checkpoint": {"path": "/p/18", "resumeFrom": "/p/19"},
    "volumes": [VOLUME | {"mountPath": "/p/20"}],
}  # fmt: skip


def broken(**changes: Any) -> list[str]:
    return [v.field for v in validate(raw_spec(**changes), "demo").violations]


def test_every_path_of_a_spec_is_known() -> None:
    assert {path for _, path in paths(make_spec(**EVERYWHERE))} == {f"/p/{i}" for i in range(21)}


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("spec.checkpoint.path", {"checkpoint": {"path": "/data/../etc"}}),
        ("spec.data.train[0]", {"data": {"train": ["/data/../a.jsonl"]}}),
        ("spec.model.path", {"model": {"path": "/data/.."}}),
        ("spec.rewards[0].python.path", {"rewards": [{"python": {"path": "/data/../../reward.py"}}]}),
        ("spec.volumes[0].mountPath", {"volumes": [VOLUME | {"mountPath": "/mnt/../data"}], "checkpoint": {"path": "/mnt/../data/run"},
                                       "data": {"train": ["/mnt/../data/a.jsonl"]}}),
    ],
)  # fmt: skip
def test_a_path_that_goes_up_is_refused(field: str, changes: dict[str, Any]) -> None:
    assert field in broken(**changes)
    assert not any("`..`" in v.rule for v in validate(raw_spec(model={"path": "/data/..a/b.."}), "demo").violations)


def test_a_data_file_has_a_reader_for_its_ending() -> None:
    assert set(DATA_SUFFIXES) == {*OPENERS} == {*READERS}
    for name in ("a.csv", "a.txt", "a.jsonl.gz", "a", "parquet"):
        assert broken(data={"train": [f"/data/{name}"]}) == ["spec.data.train[0]"]
    assert broken(data={"train": [f"/data/a{suffix}" for suffix in DATA_SUFFIXES]}) == []
    held_out = {"sets": [{"name": "a", "files": ["/data/a.jsonl", "/data/b.csv"]}], "everySteps": 1}
    assert broken(evaluation=held_out) == ["spec.evaluation.sets[0].files[1]"]


@pytest.mark.parametrize(("format", "refused"), [("indexed", []), ("auto", []), ("text", ["spec.data.train[0]"])])
def test_an_indexed_data_set_is_named_without_an_ending(format: str, refused: list[str]) -> None:
    assert broken(task="pretrain", data={"train": ["/data/corpus_text_document"], "format": format}) == refused


def test_data_of_a_job_with_volumes_are_on_one_of_them() -> None:
    assert broken(volumes=[VOLUME], data={"train": ["/else/a.jsonl"]}) == ["spec.data.train[0]"]
    assert broken(data={"train": ["/else/a.jsonl"]}) == [], "without volumes everything is in the image"


def test_other_paths_on_no_volume_are_those_that_the_image_has_to_hold() -> None:
    spec = make_spec(volumes=[VOLUME], model={"path": "/models/m"}, rewards=[{"python": {"path": "/code/r.py"}}])
    assert outside_volumes(spec) == {"spec.model.path": "/models/m", "spec.rewards[0].python.path": "/code/r.py"}
    without = make_spec(model={"path": "/models/m"})
    assert outside_volumes(without)["spec.model.path"] == "/models/m" and "spec.checkpoint.path" in outside_volumes(
        without
    )


def test_checkpoints_of_a_job_without_any_volume_are_said_to_be_lost() -> None:
    (said,) = lost_checkpoints(make_spec())
    assert said.field == "spec.checkpoint.path" and "checkpoints are lost with the pod" in said.rule
    claim = {"persistentVolumeClaim": {"claimName": "data"}}
    assert not [*lost_checkpoints(make_spec(volumes=[VOLUME | {"source": claim}]))]


def test_the_keys_of_a_services_clients_have_a_volume_of_their_own() -> None:
    def wrong(keys: str) -> list[str]:
        volumes = [VOLUME, VOLUME | {"name": "keys", "mountPath": "/keys"}]
        spec = raw_spec(task="service", service={"keys": keys}, volumes=volumes)
        return [violation.field for violation in validate(spec, "demo").violations]

    assert wrong("/keys") == wrong("/keys/of/clients") == []
    assert wrong("/elsewhere") == ["spec.service.keys"]
    assert wrong("/data/keys") == ["spec.model.path", "spec.checkpoint.path"]


def test_clients_with_limits_of_their_own_have_keys_and_one_entry_each() -> None:
    def wrong(names: str, **service: object) -> list[str]:
        spec = raw_spec(task="service", service=service | {"clients": [{"name": name, "share": 2} for name in names]})
        return [violation.field for violation in validate(spec, "demo").violations]

    assert wrong("") == wrong("ab", keys="/keys") == []
    assert wrong("a") == ["spec.service.clients"]
    assert wrong("aba", keys="/keys") == ["spec.service.clients[2].name"]


@pytest.mark.parametrize(
    ("section", "field"), [("model", "spec.model"), ("reference", "spec.reference"), ("critic", "spec.critic")]
)
def test_a_checkpoint_of_megatron_is_on_a_volume_of_the_job(section: str, field: str) -> None:
    """An image may hold a model, but no such checkpoint. Without any volume, `lost_checkpoints` says more."""
    volume = {"name": "data", "mountPath": "/data", "source": {"emptyDir": {}}}
    paths = {"model": {"path": "/data/m", "dtype": "float32"}} | (
        {"algorithm": {"advantage": "gae"}} if section == "critic" else {}
    )

    def broken(path: str, volumes: list[dict[str, Any]]) -> list[str]:
        given = paths.get(section, {}) | {"megatronCheckpoint": path}
        spec = raw_spec(**paths | {section: given, "volumes": volumes})
        return [v.rule for v in validate(spec, "demo").violations if v.field == f"{field}.megatronCheckpoint"]

    assert broken("/elsewhere/checkpoint", [volume]) == ["is on none of spec.volumes"]
    assert not broken("/data/checkpoint", [volume]) and not broken("/elsewhere/checkpoint", [])


OF_PODS = ({"emptyDir": {}}, {"ephemeral": {"volumeClaimTemplate": {}}})
UNWRITABLE = (
    *({kind: {"name": "a", "secretName": "a"}} for kind in ("configMap", "secret")),
    {"projected": {"sources": []}},
    {"persistentVolumeClaim": {"claimName": "a", "readOnly": True}},
)


@pytest.mark.parametrize("source", UNWRITABLE, ids=[next(iter(source)) for source in UNWRITABLE])
def test_checkpoints_are_on_a_volume_that_pods_may_write(source: dict[str, Any]) -> None:
    assert "spec.checkpoint.path" in broken(volumes=[VOLUME | {"source": source}])
    elsewhere = VOLUME | {"name": "runs", "mountPath": "/data/run", "source": {"csi": {"driver": "nfs"}}}
    assert "spec.checkpoint.path" not in broken(volumes=[VOLUME | {"source": source}, elsewhere])


@pytest.mark.parametrize("source", OF_PODS, ids=["emptyDir", "ephemeral"])
def test_checkpoints_of_several_pods_are_on_a_volume_that_these_share(source: dict[str, Any]) -> None:
    """That of one pod ends with it, which is allowed, and said."""
    volumes = [VOLUME | {"source": source}]
    several = ({"trainer": {"nodes": 2}}, {"scheduling": {"spareNodes": 1}}, {"critic": {"processesPerNode": 1}})
    for changes in several:
        gae: dict[str, Any] = {"algorithm": {"advantage": "gae"}} if "critic" in changes else {}
        assert broken(volumes=volumes, **changes, **gae) == ["spec.checkpoint.path"]
    assert not broken(volumes=volumes)
    assert "ends with its pod" in next(lost_checkpoints(make_spec(volumes=volumes))).rule


@pytest.mark.parametrize("source", OF_PODS, ids=["emptyDir", "ephemeral"])
def test_what_one_pod_fetches_is_on_a_volume_that_the_others_share(source: dict[str, Any]) -> None:
    volumes = [VOLUME | {"source": source}]
    model = {"path": "/data/m", "source": "hf://org/m", "dtype": "float32"}
    assert broken(volumes=volumes, model=model) == ["spec.model.path"]
    alone = {"rollout": {"placement": "colocated"}}
    assert not broken(volumes=volumes, model=model, **alone)


@pytest.mark.parametrize("path", ["/data/a*.jsonl", "/data/part-?.parquet"])
def test_a_pattern_is_no_file(path: str) -> None:
    assert broken(data={"train": [path]}) == ["spec.data.train[0]"]
