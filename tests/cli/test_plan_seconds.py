"""The seconds that `plan` models of a step."""

import json
import re

import pytest

from cli.planned import RECIPE, plan
from kubectl_rljob.__main__ import main


def test_a_steps_seconds_are_those_by_which_suggestions_are_ranked_and_called_modelled(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert plan("--gpu", "h100") == 0
    page = capsys.readouterr().out
    row = re.findall(r"\ngenerate, train and sync +([\d,.]+) +([\d,.]+) +([\d,.]+) +([\d,.]+) +([\d,]+)\n", page)
    assert len(row) == 1 and "\nModelled and never measured for this job, with 8x400g a node, " in page
    generate, train, sync, whole = (float(seconds.replace(",", "")) for seconds in row[0][:4])
    assert whole == pytest.approx(generate + train + sync, abs=0.2)
    assert "within 20 % for training and 25 % for generation" in page
    plan("--gpu", "h100", "-o", "json", "--network", "400g")
    (found,) = json.loads(capsys.readouterr().out)
    plan("--gpu", "h100", "-o", "json", "--network", "400g", "--suggest")
    (suggested,) = json.loads(capsys.readouterr().out)
    fastest = min(one["generate"] + one["train"] + one["sync"] for one in suggested["suggestions"])
    assert fastest <= found["modelledStep"]["seconds"] + 0.01


@pytest.mark.parametrize("gpu", ["80Gi", None])
def test_a_gpu_of_unknown_rates_has_no_modelled_step(gpu: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan(*(("--gpu", gpu) if gpu else ())) == 0
    assert "MODEL   GENERATE" not in capsys.readouterr().out


def test_ahead_of_the_policy_a_step_takes_the_longer_part(capsys: pytest.CaptureFixture[str]) -> None:
    ahead = RECIPE.parent / "deepseek-v3"
    main(["plan", "-f", str(ahead / "rljob.yaml"), "--model", str(ahead), "--offline", "--gpu", "h100", "-o", "json"])
    (found,) = json.loads(capsys.readouterr().out)
    step = found["modelledStep"]
    assert step["seconds"] == pytest.approx(max(step["generate"], step["train"]) + step["sync"], abs=0.01)
