"""Which of the administrator's defaults a raw spec takes."""

from typing import Any

from api.specs import raw_spec
from rljob_api.policy import JobDefaults

GPU = [{"key": "nvidia.com/gpu", "operator": "Exists"}]
MODELS = {"name": "models", "mountPath": "/models", "source": {"persistentVolumeClaim": {"claimName": "models"}}}


def completed(spec: dict[str, Any], **defaults: Any) -> dict[str, Any]:
    found: dict[str, Any] = JobDefaults.model_validate(defaults).completed(spec).value
    return found


def taken(spec: dict[str, Any], **defaults: Any) -> dict[str, Any]:
    return JobDefaults.model_validate(defaults).completed(spec).taken


def test_without_defaults_a_spec_stays_as_it_is() -> None:
    spec = raw_spec(pools=[{"name": "judge", "model": "/data/judge"}])
    assert completed(spec) == spec
    assert taken(spec) == {}


def test_what_a_job_says_wins() -> None:
    spec = raw_spec(image="mine:1")
    assert taken(spec, image="theirs:1") == {}
    del spec["image"]
    assert taken(spec, image="theirs:1") == {"spec.image": "theirs:1"}
    assert completed(spec, image="theirs:1")["image"] == "theirs:1"


def test_entries_are_added_unless_the_job_has_their_name_or_mount_path() -> None:
    env = [{"name": "A", "value": "theirs"}, {"name": "B", "value": "theirs"}]
    spec = raw_spec(env=[{"name": "A", "value": "mine"}])
    assert completed(spec, env=env)["env"] == [{"name": "A", "value": "mine"}, {"name": "B", "value": "theirs"}]
    assert taken(spec, env=env) == {"spec.env[1]": {"name": "B", "value": "theirs"}}
    elsewhere, there = (MODELS | change for change in ({"mountPath": "/other"}, {"name": "other"}))
    assert taken(raw_spec(volumes=[elsewhere]), volumes=[MODELS]) == {}
    assert taken(raw_spec(volumes=[there]), volumes=[MODELS]) == {}
    assert completed(raw_spec(), volumes=[MODELS])["volumes"] == [MODELS | {"readOnly": False}]


def test_other_lists_are_taken_whole_by_jobs_that_have_none() -> None:
    mine = [{"key": "mine", "operator": "Exists"}]
    spec = raw_spec(trainer={"template": {"tolerations": mine}}, rollout={"template": {"tolerations": []}})
    found = completed(spec, template={"tolerations": GPU})
    assert found["trainer"]["template"]["tolerations"] == mine
    assert found["rollout"]["template"]["tolerations"] == GPU  # the API server writes [] where there is none


def test_maps_are_merged_key_by_key() -> None:
    spec = raw_spec(trainer={"template": {"annotations": {"a": "mine"}}})
    template = completed(spec, template={"annotations": {"a": "theirs", "b": "theirs"}})["trainer"]["template"]
    assert template["annotations"] == {"a": "mine", "b": "theirs"}


def test_every_role_with_pods_gets_the_template_and_no_other_section_appears() -> None:
    judge, gang = {"name": "judge", "model": "/data/judge"}, {"path": "/data/scores", "processesPerNode": 1}
    spec = raw_spec(
        pools=[judge],
        rewards=[{"rule": "math"}, {"model": gang}, {"rule": "math", "workers": {"replicas": 3}}],
        critic={"processesPerNode": 2},
        reference={"nodes": 1},
    )
    found = completed(spec, template={"tolerations": GPU})
    template = {"template": {"tolerations": GPU}}
    assert found["pools"] == [judge | template]
    workers = {"workers": {"replicas": 3} | template}
    assert found["rewards"] == [{"rule": "math"}, {"model": gang | template}, {"rule": "math"} | workers]
    assert found["critic"] == {"processesPerNode": 2} | template
    assert found["reference"] == {"nodes": 1}
    assert "rollout" not in completed(raw_spec(task="sft"), template={"tolerations": GPU})
    agent = {"python": {"path": "/data/agent.py"}, "maxTurns": 2, "maxTokens": 16}
    for placement in ("separate", "colocated"):
        rollout = {"placement": placement, "agent": agent | {"workers": {"replicas": 3}}}
        found = completed(raw_spec(rollout=rollout), template={"tolerations": GPU})["rollout"]
        assert found["agent"]["workers"] == {"replicas": 3} | template
        without = completed(raw_spec(rollout=rollout | {"agent": agent}), template={"tolerations": GPU})["rollout"]
        assert without["agent"] == agent
    sandboxed = completed(raw_spec(environments=[{"name": "a"}, {"name": "b"}]), template={"tolerations": GPU})
    assert sandboxed["environments"] == [{"name": name} | template for name in ("a", "b")]
    colocated = raw_spec(rollout={"placement": "colocated"})
    assert "template" not in completed(colocated, template={"tolerations": GPU})["rollout"]


def test_levels_of_nodes_reach_the_backends_that_read_them() -> None:
    levels = {"topologyLevels": ["rack"]}
    assert completed(raw_spec(), scheduling=levels)["scheduling"] == levels
    volcano = {"backend": "volcano", "queue": "q"}
    assert completed(raw_spec(scheduling=volcano), scheduling=levels)["scheduling"] == volcano
    unreadable = {"backend": ["none"]}
    assert completed(raw_spec(scheduling=unreadable), scheduling=levels)["scheduling"] == unreadable


def test_what_is_no_spec_is_left_to_validation() -> None:
    for nonsense in ({"env": "x"}, {"volumes": {"a": 1}}, {"trainer": []}, {"pools": ["x", None]}, {"rewards": 7}):
        spec = raw_spec() | nonsense
        found = completed(spec, env=[{"name": "A"}], volumes=[MODELS], template={"tolerations": GPU})
        assert found["env" if "env" in nonsense else "image"] == spec.get("env", spec["image"])
