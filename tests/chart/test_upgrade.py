"""Operator and trainer of different releases refuse each other, and say what to install."""

import json
import re
import tomllib
from typing import Any

import pytest
import yaml

from chart.chart import CHART, HELM, NO_HELM, ROOT, container, render
from rljob_api import names
from rljob_trainer.pod.channel import ProtocolMismatch, parse_control
from simulator.world import NAMESPACE, World

APP_VERSION = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]


def releases() -> dict[str, int]:
    """Protocol by release, as docs/operations.md has it."""
    rows = re.findall(r"^\| (\d+\.\d+\.\d+) \| (\d+) \|", (ROOT / "docs/operations.md").read_text(), re.MULTILINE)
    return {release: int(protocol) for release, protocol in rows}


def test_the_chart_installs_the_release_of_this_tree() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == APP_VERSION


@pytest.mark.skipif(HELM is None, reason=NO_HELM)
def test_without_a_tag_the_image_is_that_release() -> None:
    assert container(render())["image"] == f"rljob-operator:{APP_VERSION}"


def test_the_guide_knows_the_protocol_of_this_release() -> None:
    assert releases()[APP_VERSION] == names.PROTOCOL


async def test_an_operator_does_not_start_trainers_of_another_protocol_and_says_so() -> None:
    world = World()
    world.apply()
    for _ in range(6):
        await world.turn()
        _speak_newer(world)
    assert world.status.attempt is None
    expected = f"speaks protocol {names.PROTOCOL + 1} and this operator {names.PROTOCOL}: use a trainer image and"
    assert expected in world.status.message


def _speak_newer(world: World) -> None:
    """Every launcher is of the next release."""
    for (kind, _, name), obj in list(world.cluster.objects.items()):
        if kind == "ConfigMap" and names.REPORT_KEY in obj.get("data", {}):
            report: dict[str, Any] = json.loads(obj["data"][names.REPORT_KEY])
            newer = json.dumps(report | {"protocol": names.PROTOCOL + 1})
            world.cluster.edit("ConfigMap", NAMESPACE, name)["data"] = {names.REPORT_KEY: newer}


async def test_a_trainer_does_not_follow_an_operator_of_another_protocol_and_says_so() -> None:
    world = World()
    world.apply()
    await world.until(state="Running")
    assert world.control is not None
    newer = world.control.model_dump(mode="json", by_alias=True) | {"protocol": names.PROTOCOL + 1}
    with pytest.raises(ProtocolMismatch, match=f"speaks protocol {names.PROTOCOL} .* {names.PROTOCOL + 1}") as refused:
        parse_control(json.dumps(newer))
    assert "of the same release" in str(refused.value)
