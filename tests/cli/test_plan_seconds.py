"""The seconds that `plan` models of a step."""

import json
import re
from typing import Any

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


SMALL = RECIPE.parent / "qwen2.5-1.5b-gsm8k"


def of_small(capsys: pytest.CaptureFixture[str], *settings: str) -> dict[str, Any]:
    """The plan of the recipe for one GPU, with `settings`."""
    given = (part for setting in settings for part in ("--set", setting))
    main(
        ["plan", "-f", f"{SMALL}/rljob.yaml", "--model", str(SMALL), "--offline", "--gpu", "h200", "-o", "json", *given]
    )
    (found,) = json.loads(capsys.readouterr().out)
    return dict(found)


def test_two_servers_on_a_gpu_are_proposed_with_settings_that_make_the_step_as_fast(
    capsys: pytest.CaptureFixture[str],
) -> None:
    plain = of_small(capsys)
    faster = plain["faster"]
    assert faster["seconds"] < 0.95 * plain["modelledStep"]["seconds"]
    arguments = {key.rpartition(".")[2]: n for key, n in faster["settings"].items() if "vllmArgs" in key}
    settings = f"rollout.vllmArgs={json.dumps(arguments)}", "rollout.serversPerGpu=2"
    changed = of_small(capsys, *settings)
    assert not changed["violations"] and "mayNotFit" not in changed and "faster" not in changed
    assert changed["modelledStep"]["seconds"] == faster["seconds"]
    main(["plan", "-f", f"{SMALL}/rljob.yaml", "--model", str(SMALL), "--offline", "--gpu", "h200"])
    page = capsys.readouterr().out
    assert f"By the same model a step takes {faster['seconds']:.1f} s, " in page
    assert (
        f"spec.rollout.serversPerGpu: 2, with spec.rollout.vllmArgs.kv-cache-memory-bytes: {arguments['kv-cache-memory-bytes']}"
        in page
    )


@pytest.mark.parametrize(
    "settings",
    [
        ("rollout.placement=separate", "rollout.replicas=1", "rollout.vllmArgs={}"),
        ("rollout.sampling.maxTokens=8",),
        ("train.promptsPerStep=1",),
        ("trainer.processesPerNode=2", "rollout.tensorParallel=2"),
        ("train.tokensPerMicroBatch=38912",),
        ("trainer.template.resources={limits: {memory: 28Gi}}",),
        ("evaluation.only=true",),
        ("rollout.sampling.temperature=-1",),
    ],
    ids=["apart", "short", "few", "wide", "no room on the GPU", "no room on the host", "only evaluates", "broken"],
)
def test_two_servers_on_a_gpu_are_not_proposed_where_they_gain_nothing_do_not_fit_or_may_not_be(
    settings: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert "faster" not in of_small(capsys, *settings)
