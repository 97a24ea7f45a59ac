"""Which pod's log is printed, and how."""

import pytest

from cli.conftest import Rljob
from cli.fake_api import FakeApi
from cli.makers import make_job, make_spec, running

PODS = {
    "demo-trainer-0": "trainer",
    "demo-trainer-1": "trainer",
    "demo-rollout-0": "rollout",
    "demo-rollout-1": "rollout",
    "demo-judge-1": "judge",
    "demo-reference-0": "reference",
    "demo-reference-1": "reference",
}
PARTS = make_spec(
    pools=[{"name": "judge", "model": "/data/judge", "replicas": 2}],
    rewards=[{"vllm": {"pool": "judge"}}],
    reference={"nodes": 2, "processesPerNode": 2},
    algorithm={"kl": {"coefficient": 0.01}},
)


@pytest.fixture
def job(api: FakeApi) -> None:
    """Ranks 0-7 are in demo-trainer-1, 8-15 in demo-trainer-0; those of the reference 0 and 1 in demo-reference-1."""
    status = running()
    status["attempt"]["members"] += [
        {
            "pod": f"demo-reference-{i}",
            "podUid": "u",
            "bootId": "b",
            "nodeRank": 1 - i,
            "address": "1",
            "role": "reference",
        }
        for i in range(2)
    ]
    api.add(make_job(spec=PARTS, **status))
    api.pod_roles = dict(PODS)
    api.logs = {pod: f"log of {pod} é\n".encode() for pod in PODS}


@pytest.mark.usefixtures("job")
@pytest.mark.parametrize(
    ("flags", "pod"),
    [
        ((), "demo-trainer-1"),
        (("--rank", "7"), "demo-trainer-1"),
        (("--rank", "8"), "demo-trainer-0"),
        (("--pod", "demo-trainer-0"), "demo-trainer-0"),
        (("--role", "rollout"), "demo-rollout-0"),
        (("--role", "rollout", "--rank", "1"), "demo-rollout-1"),
        (("--role", "judge", "--rank", "1"), "demo-judge-1"),
        (("--role", "reference"), "demo-reference-1"),
        (("--role", "reference", "--rank", "3"), "demo-reference-0"),
    ],
)
def test_a_pod_is_found_by_rank_role_or_name(rljob: Rljob, flags: tuple[str, ...], pod: str) -> None:
    assert rljob("logs", "demo", *flags).out == f"log of {pod} é\n"


@pytest.mark.usefixtures("job")
def test_a_role_that_the_job_has_not_is_refused_with_those_it_has(rljob: Rljob) -> None:
    assert rljob("logs", "demo", "--role", "jury").err == (
        "error: --role jury: rljob demo in namespace research has no such role. It has: trainer, reference, rollout, judge\n"
    )


@pytest.mark.usefixtures("job")
def test_flags_reach_the_api(api: FakeApi, rljob: Rljob) -> None:
    api.logs["demo-trainer-1 previous"] = b"earlier life\n"
    assert rljob("logs", "demo", "-p", "-f", "--tail", "5").out == "earlier life\n"
    _, path, query = api.requests[-1]
    assert path == "/api/v1/namespaces/research/pods/demo-trainer-1/log"
    assert query == {"container": "trainer", "previous": "true", "follow": "true", "tailLines": "5"}


@pytest.mark.usefixtures("job")
def test_a_container_without_an_earlier_life_says_so(rljob: Rljob) -> None:
    assert rljob("logs", "demo", "--previous").err == (
        "error: log of pod demo-trainer-1 in namespace research: "
        'previous terminated container "trainer" in pod "demo-trainer-1" not found\n'
        "next:  kubectl describe pod demo-trainer-1 -n research\n"
    )


@pytest.mark.usefixtures("job")
def test_a_rank_outside_the_world_is_refused(rljob: Rljob) -> None:
    screen = rljob("logs", "demo", "--rank", "16")
    assert (screen.code, screen.err) == (1, "error: --rank 16: rljob demo in namespace research has ranks 0 to 15\n")
    screen = rljob("logs", "demo", "--role", "reference", "--rank", "4")
    assert (screen.code, screen.err) == (1, "error: --rank 4: rljob demo in namespace research has ranks 0 to 3\n")


@pytest.mark.usefixtures("job")
def test_a_pod_of_another_job_is_refused_with_the_pods_there_are(rljob: Rljob) -> None:
    assert rljob("logs", "demo", "--pod", "other-trainer-0").err == (
        "error: rljob demo in namespace research has no trainer pod other-trainer-0. It has: demo-trainer-0, demo-trainer-1\n"
        "next:  kubectl rljob logs demo -n research --role trainer --pod demo-trainer-0\n"
    )


def test_a_job_without_pods_says_where_its_logs_are(api: FakeApi, rljob: Rljob) -> None:
    api.add(make_job(state="Suspended", suspended=True, attempt={"number": 3}))
    assert rljob("logs", "demo").err == (
        "error: rljob demo in namespace research has no trainer pods (state: Suspended). "
        "The logs of its attempts are on its volume\n"
        "next:  kubectl rljob logs demo -n research --attempt 3\n"
    )
    assert rljob("logs", "demo", "--role", "rollout").err == (
        "error: rljob demo in namespace research has no rollout pods (state: Suspended)\n"
        "next:  kubectl rljob status demo -n research\n"
    )


@pytest.mark.usefixtures("job")
def test_rank_and_pod_exclude_each_other(rljob: Rljob) -> None:
    assert rljob("logs", "demo", "--rank", "1", "--pod", "demo-trainer-0").code == 2
