"""`plan --suggest`: layouts that `plan` itself accepts, the fastest first."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from kubectl_rljob.__main__ import main

EXAMPLES = Path(__file__).parents[2] / "examples"
GIB = 2**30


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search ends by itself, however busy the machine is."""
    monkeypatch.setattr("kubectl_rljob.suggesting.SECONDS", 1200.0)


def command(recipe: str, *arguments: str, gpu: str = "h100") -> list[str]:
    directory = EXAMPLES / recipe
    return [
        "plan",
        "-f",
        str(directory / "rljob.yaml"),
        "--model",
        str(directory),
        "--gpu",
        gpu,
        "--offline",
        *arguments,
    ]


def suggested(capsys: pytest.CaptureFixture[str], recipe: str, *arguments: str, gpu: str = "h100") -> dict[str, Any]:
    code = main(command(recipe, "--suggest", "-o", "json", *arguments, gpu=gpu))
    (found,) = json.loads(capsys.readouterr().out)
    assert code == (0 if found["suggestions"] else 1)
    return found


def options(settings: dict[str, Any]) -> list[str]:
    return [word for path, value in settings.items() for word in ("--set", f"{path}={json.dumps(value)}")]


@pytest.mark.parametrize(
    ("recipe", "arguments"),
    [
        ("qwen2.5-7b-gsm8k", ()),
        ("qwen2.5-7b-gsm8k", ("--set", "trainer.nodes=2", "--set", "trainer.parallelism.pipeline=3")),
        ("qwen3-30b-a3b-dapo", ("--network", "400g")),
        ("qwen3-30b-a3b-dapo", ("--set", "trainer.recompute={granularity: selective, modules: [moe]}")),
    ],
)
def test_every_suggestion_passes_plan_and_the_fastest_is_first(
    capsys: pytest.CaptureFixture[str], recipe: str, arguments: tuple[str, ...]
) -> None:
    found = suggested(capsys, recipe, *arguments)["suggestions"]
    assert 1 < len(found) <= 5
    speeds = [one["tokensPerSecond"] for one in found]
    assert speeds == sorted(speeds, reverse=True)
    cuts = [one["settings"].get("trainer.parallelism") for one in found]
    assert len({str(cut) for cut in cuts}) == len(cuts)
    for one in found:
        assert main(command(recipe, *arguments, *options(one["settings"]), "-o", "json")) == 0
        (plan,) = json.loads(capsys.readouterr().out)
        assert max(phase["total"] for phase in plan["phases"].values()) < 79.1 * GIB and plan["kvCache"]["there"] > 0


def test_a_layout_that_is_too_large_is_suggested_with_the_most_tokens_in_a_micro_batch_that_fit(
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = {"trainer.nodes": 2, "trainer.recompute": {"granularity": "full"}, "train.tokensPerMicroBatch": 24_576}

    def fullest(changed: dict[str, Any]) -> float:
        assert main(command("qwen2.5-7b-gsm8k", *options(given | changed), "-o", "json")) in (0, 1)
        (plan,) = json.loads(capsys.readouterr().out)
        return max(phase["total"] for phase in plan["phases"].values()) / (79.1 * GIB)

    best, *others = suggested(capsys, "qwen2.5-7b-gsm8k", *options(given))["suggestions"]
    tokens = best["settings"]["train.tokensPerMicroBatch"]
    assert best["settings"]["trainer.recompute"] is None and tokens % 1024 == 0
    assert fullest(best["settings"]) <= 0.951
    assert fullest(best["settings"] | {"train.tokensPerMicroBatch": tokens + 1024}) > 0.949
    assert any("train.tokensPerMicroBatch" not in other["settings"] for other in others), "which fit as the job has it"


def test_suggestions_have_the_gpus_of_the_job(capsys: pytest.CaptureFixture[str]) -> None:
    """More servers' GPUs make any step shorter."""
    given = {"rollout.placement": "separate", "rollout.replicas": 3, "rollout.tensorParallel": 4}
    found = suggested(capsys, "qwen2.5-7b-gsm8k", *options(given))["suggestions"]
    pools = [given | one["settings"] for one in found]
    assert {pool["rollout.replicas"] * pool["rollout.tensorParallel"] for pool in pools} == {12}
    assert {pool["rollout.tensorParallel"] for pool in pools} - {4}, "another size is suggested"


def test_the_page_has_a_table_and_the_options_to_take_each_with(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command("qwen3-30b-a3b-dapo", "--suggest")) == 0
    head, table, note, lines = capsys.readouterr().out.rstrip("\n").split("\n\n")
    assert re.fullmatch(
        r"RLJob qwen3-30b-a3b-dapo: the fastest of [\d,]+ layouts that fit on 4 pods x 8 GPUs of 79.1 GiB, 8x400g a node",
        head,
    )
    assert note.startswith("Seconds and tokens/s are modelled and not measured")
    layouts = [row.split()[1] for row in table.splitlines()[1:]]
    for layout, line in zip(layouts, lines.splitlines(), strict=True):
        assert main(command("qwen3-30b-a3b-dapo", *shlex.split(line.partition(": ")[2]))) == 0
        assert f"({layout})" in capsys.readouterr().out


HOST = "trainer.template.resources.limits.memory"


@pytest.mark.parametrize(
    ("recipe", "given", "offload"),
    [
        (
            "llama-3.3-70b",
            ("trainer.nodes=4",),
            {"parameters": True, "gradients": True, "update": True},
        ),
        pytest.param("qwen3-235b-a22b", ("trainer.nodes=4",), {"update": True}, marks=pytest.mark.extra),
        (
            "qwen3-30b-a3b-dapo",
            (
                "trainer.nodes=1",
                "trainer.processesPerNode=4",
                "trainer.template.resources.limits=null",
                "trainer.offload={gradients: true}",
            ),
            {"gradients": True, "update": True},
        ),
    ],
    ids=["70 B on four nodes", "235 B on four nodes", "30 B on four GPUs"],
)
def test_what_fits_no_other_way_is_suggested_with_optimizer_steps_on_the_host(
    capsys: pytest.CaptureFixture[str],
    recipe: str,
    given: tuple[str, ...],
    offload: dict[str, bool],
) -> None:
    arguments = [word for setting in given for word in ("--set", setting)]
    found = suggested(capsys, recipe, *arguments)
    assert found["updateOnHost"] and found["suggestions"]
    for one in found["suggestions"]:
        assert one["settings"]["trainer.offload"] == offload
        assert main(command(recipe, *arguments, *options(one["settings"]), "-o", "json")) == 0
        (plan,) = json.loads(capsys.readouterr().out)
        without = options({"trainer.offload": {**offload, "update": False, "optimizer": True}})
        main(command(recipe, *arguments, *options(one["settings"]), *without, "-o", "json"))
        (on_gpu,) = json.loads(capsys.readouterr().out)
        assert max(phase["total"] for phase in plan["phases"].values()) < 79.1 * GIB
        assert max(phase["total"] for phase in on_gpu["phases"].values()) > 0.95 * 79.1 * GIB
    main(command(recipe, *arguments, "--suggest"))
    head, note = capsys.readouterr().out.splitlines()[:2]
    assert "that fit on" in head and note.startswith("With the optimizer on GPUs none fits")


@pytest.mark.parametrize("offload", [{"parameters": True, "gradients": True, "optimizer": True}, None])
def test_a_critic_on_the_trainers_ranks_takes_its_optimizer_steps_on_the_host_as_well(
    capsys: pytest.CaptureFixture[str], offload: dict[str, bool] | None
) -> None:
    given = {
        "trainer.nodes": 4 if offload else 8,
        "trainer.template.resources.limits": None,
        "algorithm.advantage": "gae",
        "train.samplesPerPrompt": 1,
        "train.promptsPerStep": 2048,
        "critic": {"offload": offload} if offload else {},
    }
    found = suggested(capsys, "llama-3.3-70b", *options(given))
    assert found["updateOnHost"] and found["suggestions"]
    expected = {part: True for part in offload or () if part != "optimizer"} | {"update": True}
    for one in found["suggestions"]:
        assert one["settings"]["critic.offload"] == expected
        assert main(command("llama-3.3-70b", *options(given), *options(one["settings"]), "-o", "json")) == 0
        capsys.readouterr()


def test_the_optimizer_stays_on_gpus_where_a_layout_fits_with_it(capsys: pytest.CaptureFixture[str]) -> None:
    found = suggested(capsys, "qwen2.5-7b-gsm8k")
    assert not found["updateOnHost"]
    assert not any("trainer.offload" in one["settings"] for one in found["suggestions"])


def test_a_host_without_room_for_the_optimizer_gets_no_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (
        "--set",
        "trainer.nodes=4",
        "--set",
        f"{HOST}=400Gi",
        "--set",
        "trainer.template.resources.requests={}",
    )
    found = suggested(capsys, "llama-3.3-70b", *arguments)
    assert found["suggestions"] == [] and sum(found["reasons"].values()) == found["tried"]
    assert found["reasons"][f"are refused for spec.{HOST}"] > 0


def test_a_job_that_generates_nothing_has_suggestions_without_servers(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    job = yaml.safe_load((EXAMPLES / "qwen2.5-7b-gsm8k/rljob.yaml").read_text())
    spec = {key: job["spec"][key] for key in ("image", "model", "trainer", "checkpoint", "volumes")}
    data = {"train": ["/data/sft/train.jsonl"], "maxTokens": 4096}
    train = {"steps": 10, "samplesPerStep": 256, "tokensPerMicroBatch": 8192}
    spec |= {"task": "sft", "data": data, "train": train}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job | {"spec": spec}))
    arguments = ["--model", str(EXAMPLES / "qwen2.5-7b-gsm8k"), "--gpu", "h100", "--offline", "--suggest"]
    assert main(["plan", "-f", str(tmp_path / "job.yaml"), *arguments, "-o", "json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["suggestions"] and all({"generate", "sync"}.isdisjoint(one) for one in found["suggestions"])
    assert not any("rollout.tensorParallel" in one["settings"] for one in found["suggestions"])
    assert main(["plan", "-f", str(tmp_path / "job.yaml"), *arguments]) == 0
    (header,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("#"))
    assert re.split(r" {2,}", header) == [
        "#",
        "TRAINER",
        "RECOMPUTE",
        "MICRO-BATCH",
        "GIB OF A GPU",
        "OF A HOST",
        "TRAIN",
        "TOKENS/S",
    ]


def test_a_model_that_fits_nowhere_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    found = suggested(capsys, "qwen3-30b-a3b-dapo", "--set", "trainer.nodes=1", gpu="rtx4090")
    assert found["suggestions"] == [] and found["tried"] > 50
    assert main(command("qwen3-30b-a3b-dapo", "--suggest", "--set", "trainer.nodes=1", gpu="rtx4090")) == 1
    head, docs = capsys.readouterr().out.rstrip("\n").split("\n")
    start = r"RLJob qwen3-30b-a3b-dapo: none of ([\d,]+) layouts fits on 1 pod x 8 GPUs of 23.6 GiB, 8x400g a node: "
    counts = re.fullmatch(
        start + r"([\d,]+) break a rule of layouts((?:, [\d,]+ take more of a GPU in (?:train|sync))+)", head
    )
    assert counts, head
    tried, broken, larger = (re.findall(r"\d[\d,]*", part) for part in counts.groups())
    assert sum(int(count.replace(",", "")) for count in (*broken, *larger)) == int(tried[0].replace(",", ""))
    assert docs == "docs/sizing.md has what to change"


def test_rules_that_no_layout_changes_are_shown_in_its_place(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command("qwen2.5-7b-gsm8k", "--suggest", "--set", "train.promptsPerStep=0")) == 1
    assert "spec.train.promptsPerStep = 0\n" in capsys.readouterr().out


def test_a_key_that_no_layout_changes_is_shown_in_place_of_layouts(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(command("qwen2.5-7b-gsm8k", "--suggest", "--set", "trainer.transformerConfig={moe_router_topk: 3}")) == 1
    )
    out = capsys.readouterr().out
    assert "spec.trainer.transformerConfig.moe_router_topk = 3\n    this key is set by the model" in out
    assert "layouts" not in out


def test_layouts_that_fit_and_that_plan_refuses_are_counted_with_the_field(capsys: pytest.CaptureFixture[str]) -> None:
    """`cpu_offloading` works in one stage without recomputation, and those do not fit."""
    tight = ("--set", "trainer.transformerConfig={cpu_offloading: true}", "--set", "trainer.offload={}")
    found = suggested(capsys, "llama-3.3-70b", *tight)
    assert found["suggestions"] == [] and sum(found["reasons"].values()) == found["tried"]
    assert found["reasons"]["are refused for spec.trainer.transformerConfig.cpu_offloading"] > 0
    assert main(command("llama-3.3-70b", "--suggest", *tight)) == 1
    out = capsys.readouterr().out
    assert re.search(r"\d are refused for spec.trainer.transformerConfig.cpu_offloading", out)
    assert not re.search(r"\d ,|: ,", out)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--gpu", "80Gi", "--model", "MODEL"), "--suggest needs --model, and --gpu with one of a100-40g, "),
        ((), "--suggest needs --model, and --gpu with one of a100-40g, "),
        (
            ("--model", "MODEL", "--gpu", "h100", "--set", "trainer.device=cpu"),
            "--suggest is for jobs on GPUs, and qwen2-7b-gsm8k has ",
        ),
        (("--model", "MODEL", "--network", "fast"), "--network fast: write the bits per second of a node's cards"),
    ],
)
def test_what_suggestions_need_is_said(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    directory = EXAMPLES / "qwen2.5-7b-gsm8k"
    given = [str(directory) if word == "MODEL" else word for word in arguments]
    assert main(["plan", "-f", str(directory / "rljob.yaml"), "--offline", "--suggest", *given]) == 1
    assert capsys.readouterr().err.startswith(f"error: {message}")


def test_what_was_not_looked_at_in_time_is_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kubectl_rljob.suggesting.SECONDS", 0.0)
    assert main(command("qwen3-30b-a3b-dapo", "--suggest")) == 1
    assert "none of 0 layouts, as many as there was time for, fits on" in capsys.readouterr().out


def test_hundreds_of_gpus_have_no_more_layouts_than_there_is_time_for(capsys: pytest.CaptureFixture[str]) -> None:
    found = suggested(capsys, "qwen3-30b-a3b-dapo", "--set", "trainer.nodes=64")
    assert found["tried"] < 20_000 and len(found["suggestions"]) == 5


APART = ("--set", "trainer.nodes=24", "--set", "rollout.replicas=8")


def test_another_split_of_as_many_gpus_is_suggested_where_it_is_faster(capsys: pytest.CaptureFixture[str]) -> None:
    """24 nodes of 32 train what eight can, and the servers on the other eight are waited for."""
    found = suggested(capsys, "qwen3-235b-a22b", *APART)
    split, best = found["split"], found["suggestions"][0]
    assert split["trainingGpus"] + split["generatingGpus"] == 256 and split["trainingGpus"] < 24 * 8
    assert split["tokensPerSecond"] > 1.02 * best["tokensPerSecond"]
    assert main(command("qwen3-235b-a22b", *options(split["settings"]))) == 0


def test_a_split_stays_where_no_other_has_as_many_gpus_and_shared_gpus_have_none(
    capsys: pytest.CaptureFixture[str],
) -> None:
    apart = ("--set", "rollout.placement=separate", "--set", "rollout.replicas=1")
    main(command("qwen2.5-7b-gsm8k", "--suggest", *apart))
    assert "between training and generation stays: no other has as many GPUs." in capsys.readouterr().out
    main(command("qwen2.5-7b-gsm8k", "--suggest"))
    assert "split" not in capsys.readouterr().out


def test_a_split_that_is_faster_is_shown_with_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    """Also where the best layout of the job's own split has fewer servers of more GPUs."""
    apart = ("rollout.placement=separate", "rollout.replicas=12", "trainer.nodes=2", "trainer.processesPerNode=2")
    main(command("qwen2.5-7b-gsm8k", "--suggest", *(word for one in apart for word in ("--set", one)), gpu="h200"))
    found = re.search(
        r"split otherwise, (\d+) GPUs for training and (\d+) for generation, have", capsys.readouterr().out
    )
    assert found and int(found[1]) + int(found[2]) == 16 and int(found[1]) > 4


def test_servers_that_share_a_gpu_keep_their_number_and_are_cut_over_no_others(
    capsys: pytest.CaptureFixture[str],
) -> None:
    sharing = {"rollout.serversPerGpu": 2, "rollout.vllmArgs": {"kv-cache-memory-bytes": 8 * GIB}}
    found = suggested(capsys, "qwen2.5-7b-gsm8k", *options(sharing))
    assert found["suggestions"]
    assert not [path for s in found["suggestions"] for path in s["settings"] if path.startswith("rollout.")]
    assert not [reason for reason in found["reasons"] if "rollout" in reason]
    main(command("qwen2.5-7b-gsm8k", "--suggest", *options(sharing)))
    assert re.search(r"^1 .* 2 x tp1 ", capsys.readouterr().out, re.MULTILINE), "the column of servers"
