"""The list, whole, and the ways to choose what is listed."""

import yaml

from cli.conftest import Rljob
from cli.fake_api import FakeApi
from cli.makers import make_job, running

ONE_NAMESPACE = """\
NAME    STATE       STEP      METRIC         READY    RESTARTS   AGE
demo    Running     120/500   reward 0.600   2/2      2          2d
fresh   Pending     <none>    <none>         <none>   0          2d
held    Suspended   80/500    loss 0.520     -        1          2d
"""

ALL_NAMESPACES = """\
NAMESPACE   NAME   STATE     STEP      METRIC         READY    RESTARTS   AGE
research    demo   Running   120/500   reward 0.600   2/2      2          2d
teaching    demo   Pending   <none>    <none>         <none>   0          2d
"""


def in_namespace(job: dict, namespace: str) -> dict:
    return job | {"metadata": job["metadata"] | {"namespace": namespace}}


def test_jobs_of_the_contexts_namespace_have_the_columns_of_kubectl_get(api: FakeApi, rljob: Rljob) -> None:
    api.add(make_job(**running()))
    api.add(make_job("fresh"))
    progress = {"text": "80/500", "metric": "loss 0.520"}
    api.add(make_job("held", state="Suspended", progress=progress, restarts={"total": 1}, trainer={"text": "-"}))
    api.add(in_namespace(make_job("other"), "teaching"))
    assert rljob("list").out == ONE_NAMESPACE


def test_all_namespaces_get_a_column(api: FakeApi, rljob: Rljob) -> None:
    api.add(make_job(**running()))
    api.add(in_namespace(make_job(), "teaching"))
    assert rljob("list", "-A").out == ALL_NAMESPACES


def test_an_empty_namespace_says_so_on_stderr(api: FakeApi, rljob: Rljob) -> None:
    screen = rljob("list", "-n", "quiet")
    assert (screen.code, screen.out, screen.err) == (0, "", "No rljobs found in namespace quiet.\n")


def test_the_flag_n_wins_over_the_contexts_namespace_before_and_after_the_verb(api: FakeApi, rljob: Rljob) -> None:
    api.add(in_namespace(make_job("there"), "teaching"))
    assert "there" in rljob("list", "-n", "teaching").out
    assert "there" in rljob("-n", "teaching", "list").out


def test_a_context_without_a_namespace_means_default(api: FakeApi, rljob: Rljob) -> None:
    api.add(in_namespace(make_job("there"), "default"))
    assert "there" in rljob("list", "--context", "elsewhere").out


def test_an_administrator_may_act_as_a_user(api: FakeApi, rljob: Rljob) -> None:
    api.add(make_job())
    assert rljob("list", "--as", "system:serviceaccount:research:alice").code == 0
    assert set(api.users) == {"system:serviceaccount:research:alice"}
    api.users.clear()
    rljob("list")
    assert set(api.users) == {None}


def test_o_yaml_prints_a_list_object(api: FakeApi, rljob: Rljob) -> None:
    api.add(make_job())
    printed = yaml.safe_load(rljob("list", "-o", "yaml").out)
    assert (printed["kind"], [item["metadata"]["name"] for item in printed["items"]]) == ("List", ["demo"])
