"""The ways to cut a server's model that `plan` lists: each is a job that passes validation, and what is said of it is what its own plan says."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kubectl_rljob.__main__ import main
from kubectl_rljob.ways import SHOWN, ServerWays, ways
from rljob_api.rules import validate
from rljob_api.sizing.memory import GIB, cache_memory, rollout_memory
from rljob_api.sizing.network import generation
from rljob_api.sizing.replica import longest_context
from rljob_api.sizing.shape import Shape
from rljob_api.spec import RLJobSpec

EXAMPLES = Path(__file__).parents[2] / "examples"
RECIPES = ("deepseek-v3", "qwen3-235b-a22b", "llama-3.3-70b", "glm-4.5-air", "qwen2.5-7b-gsm8k")
"""Latent attention, mixtures of experts, and two dense models, of which the servers of the last one are on the trainer's GPUs."""
DEEPSEEK = EXAMPLES / "deepseek-v3"


FIELDS = {"spec.rollout.dataParallel", "spec.rollout.nodes", "spec.rollout.pipelineParallel"}


def raw(recipe: str) -> dict[str, Any]:
    return yaml.safe_load((EXAMPLES / recipe / "rljob.yaml").read_text())["spec"]


def config(recipe: str) -> dict[str, Any]:
    return json.loads((EXAMPLES / recipe / "config.json").read_text())


def found(spec: dict[str, Any], recipe: str, gib: float) -> ServerWays | None:
    shape = Shape.of(config(recipe))
    assert shape
    return ways(RLJobSpec.model_validate(spec), shape, config(recipe), gib * GIB)


def with_servers(spec: dict[str, Any], **sizes: Any) -> dict[str, Any]:
    return spec | {"rollout": spec["rollout"] | sizes}


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(
    recipe=st.sampled_from(RECIPES),
    nodes=st.sampled_from((1, 2, 4, 8)),
    tensor=st.sampled_from((1, 2, 4, 8, 16)),
    pipeline=st.sampled_from((1, 2, 4)),
    interrupt=st.sampled_from(("wait", "keep")),
    gib=st.sampled_from((20, 79.1, 139.8)),
)
def test_every_way_is_a_job_that_passes_validation(
    recipe: str, nodes: int, tensor: int, pipeline: int, interrupt: str, gib: float
) -> None:
    """And has as many pods and GPUs as the job's."""
    sizes = {"nodes": nodes, "tensorParallel": tensor, "pipelineParallel": pipeline, "interrupt": interrupt}
    spec = with_servers(raw(recipe), **sizes)
    if validate(spec, "job", config(recipe)).violations:
        return
    listed = found(spec, recipe, gib)
    if listed is None:
        return
    assert 2 <= len(listed.accepted) <= SHOWN and sum(way.own for way in listed.accepted) == 1
    own, shape = RLJobSpec.model_validate(spec).rollout, Shape.of(config(recipe))
    assert shape
    for way in listed.accepted:
        changed = with_servers(spec, **way.settings)
        assert validate(changed, "job", config(recipe)).violations == (), way.name
        job = RLJobSpec.model_validate(changed)
        assert (job.rollout.nodes, job.rollout.gpus) == (own.nodes, own.gpus)
        assert way.own == (job.rollout == own)
        memory = cache_memory(job, shape, gib * GIB)
        assert (way.weights, way.cached) == (rollout_memory(job, shape).weights, memory.there)
        assert way.fits == (memory.tokens / job.rollout.data_parallel >= longest_context(job))
        assert way.sent == generation(job, shape).sent


def names_of(listed: ServerWays | None) -> list[str]:
    return [way.name for way in listed.accepted] if listed else []


@pytest.mark.parametrize(
    ("recipe", "sizes", "wanted"),
    [
        ("deepseek-v3", {}, "pp32 tp2-pp16 tp2-dp16-ep tp4-pp8 tp4-dp8-ep tp8-dp4-ep tp8-pp4 tp16-pp2 dp32-ep tp32"),
        ("deepseek-v3", {"interrupt": "keep", "tensorParallel": 32, "pipelineParallel": 1}, ""),
        ("qwen3-235b-a22b", {}, "tp4-pp2 tp2-pp4 tp4-dp2-ep pp8 tp2-dp4-ep tp8 dp8-ep"),
        ("llama-3.3-70b", {"placement": "separate", "tensorParallel": 4}, "pp4 tp2-pp2 tp4"),
        ("llama-3.3-70b", {}, ""),
    ],
)
def test_the_ways_of_a_model_are_those_that_rules_accept(recipe: str, sizes: dict[str, Any], wanted: str) -> None:
    """A dense model has no copies, a colocated server no stages, and requests that are kept need one stage without copies."""
    assert sorted(names_of(found(with_servers(raw(recipe), **sizes), recipe, 79.1))) == sorted(wanted.split())


def test_ways_with_less_room_are_counted_and_the_own_one_stays() -> None:
    spec = with_servers(raw("deepseek-v3"), nodes=8, tensorParallel=64, pipelineParallel=1)
    listed = found(spec, "deepseek-v3", 79.1)
    assert listed and [way.name for way in listed.accepted if way.own] == ["tp64"]
    tokens = [way.tokens for way in listed.accepted]
    assert tokens == sorted(tokens, reverse=True)
    assert {ways.field for ways in listed.refused} <= FIELDS


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize(
    "sizes", [{}, {"placement": "separate", "nodes": 2, "tensorParallel": 16, "pipelineParallel": 1}]
)
def test_ways_that_are_not_shown_are_named_with_the_rule_that_refuses_them(recipe: str, sizes: dict[str, Any]) -> None:
    """Each way to cut a server's GPUs is there once: accepted, left out for its room, or refused."""
    spec = with_servers(raw(recipe), **sizes)
    listed = found(spec, recipe, 79.1)
    if listed is None:
        return
    gpus = RLJobSpec.model_validate(spec).rollout.gpus
    cuts = {(t, p, gpus // t // p) for t in range(1, gpus + 1) for p in range(1, gpus + 1) if gpus % (t * p) == 0}
    names = [way.name.removesuffix("-ep") for way in listed.accepted] + [n for one in listed.refused for n in one.names]
    assert len(names) + listed.more == len(cuts) and len({*names}) == len(names)
    for names_of_rule, field, rule in listed.refused:
        for name in names_of_rule:
            of = {letters: int(size) for letters, size in re.findall(r"([a-z]+)(\d+)", name)}
            cut = {
                "tensorParallel": of.get("tp", 1),
                "pipelineParallel": of.get("pp", 1),
                "dataParallel": of.get("dp", 1),
            }
            broken = [
                (v.field, v.rule)
                for whole in (True, False)
                for v in validate(with_servers(spec, **cut, expertParallel=whole), "job", config(recipe)).violations
            ]
            assert (field, rule) in broken, name


def plan(*arguments: str) -> int:
    return main(["plan", "-f", str(DEEPSEEK / "rljob.yaml"), "--model", str(DEEPSEEK), "--offline", *arguments])


def rows(page: str) -> dict[str, list[str]]:
    """Cells of the table, by way."""
    lines = page.partition("WAYS OF A SERVER")[2].partition("\nNot shown")[0].splitlines()[1:]
    cells = [re.split(r" {2,}", line) for line in lines]
    return {first: rest for first, *rest in cells}


def test_the_table_marks_the_jobs_own_way_and_says_what_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    assert plan("--gpu", "h100") == 0
    out = capsys.readouterr().out
    assert "WAYS OF A SERVER: 4 pods x 8 GPUs" in out
    assert rows(out)["tp8-pp4 (as the job)"] == ["41.1", "30.1", "1,753,900", "150.3", "yes"]
    rule = "data-parallel copies are proven on servers of one stage only, and pipelineParallel = 4 makes more"
    assert (
        "\nNot shown:\n    pp2-dp16, " in out
        and f"\n    pp4-dp8, tp2-pp4-dp4: spec.rollout.dataParallel, since {rule}\n" in out
    )
    plan("--gpu", "48Gi")
    table = rows(capsys.readouterr().out)
    assert table["dp32-ep"] == ["69.9", "-", "0", "8,446.3", "no: its weights"]
    assert table["tp8-pp4 (as the job)"][-1] == "yes"


def test_the_ways_are_there_in_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    plan("--gpu", "80Gi", "-o", "json")
    (data,) = json.loads(capsys.readouterr().out)
    (own,) = [way for way in data["serverWays"] if way["own"]]
    assert own["tokens"] == data["kvCache"]["tokens"] and own["sent"] == data["traffic"]["generation"]["sent"]
    assert own["settings"]["tensorParallel"] == 8 and own["fits"] is True


def test_without_a_gpu_or_a_second_way_there_is_no_table(capsys: pytest.CaptureFixture[str]) -> None:
    plan()
    assert "WAYS OF A SERVER" not in capsys.readouterr().out
    small = EXAMPLES / "qwen2.5-7b-gsm8k"
    main(["plan", "-f", str(small / "rljob.yaml"), "--model", str(small), "--offline", "--gpu", "h100"])
    assert "WAYS OF A SERVER" not in capsys.readouterr().out, "a server on one GPU"


BYTES = "rollout.vllmArgs={kv-cache-memory-bytes: 100000000%s}"


def test_a_server_without_room_for_one_sample_does_not_start(capsys: pytest.CaptureFixture[str]) -> None:
    """With the bytes that the message names, it does."""
    assert plan("--gpu", "h100", "--set", BYTES % "") == 1
    out = capsys.readouterr().out
    assert "no: a sample of 10,240 tokens\n" in out and "Valid" not in out
    assert "\nspec.rollout.vllmArgs.kv-cache-memory-bytes = 100000000\n" in out
    assert (
        "    the cache of a server has room for 5,425 of the 10,240 tokens of a sample, and vLLM starts with no less\n"
        in out
    )
    (needed,) = re.findall(r"fix: set at least (\d+), or remove it\n", out)
    assert plan("--gpu", "h100", "--set", f"rollout.vllmArgs={{kv-cache-memory-bytes: {needed}}}") == 0
    assert plan("--gpu", "h100", "--set", f"rollout.vllmArgs={{kv-cache-memory-bytes: {int(needed) - 100_000}}}") == 1


def test_a_share_without_room_for_one_sample_is_to_be_raised(capsys: pytest.CaptureFixture[str]) -> None:
    """A tenth of a GiB above the weights, where a sample takes 0.18."""
    plan("--gpu", "h100", "-o", "json")
    (data,) = json.loads(capsys.readouterr().out)
    share = (data["memory"]["rollout"]["weights"] + 0.1 * GIB) / (79.1 * GIB)
    assert plan("--gpu", "h100", "--set", f"rollout.vllmArgs={{gpu-memory-utilization: {share}}}") == 1
    out = capsys.readouterr().out
    assert "\nspec.rollout.tensorParallel = 8\n    the cache of a server has room for 5," in out
    assert (
        "fix: raise it, or gpu-memory-utilization in spec.rollout.vllmArgs, or lower spec.rollout.sampling.maxTokens\n"
        in out
    )


@pytest.mark.parametrize(
    "given",
    [
        "quantization: awq",
        "kv-cache-dtype: nvfp4",
        "decode-context-parallel-size: 2",
        "num-gpu-blocks-override: 9000",
        "hf-overrides: {}",
    ],
)
def test_a_server_that_may_have_room_for_more_than_is_counted_may_not_fit(
    given: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan("--gpu", "h100", "--set", BYTES % f", {given}") == 0
    page = capsys.readouterr().out
    assert "  may not: a sample of 10,240 tokens\n" in page and "  no: " not in page
    last = page.rpartition("\n\n")[2]
    where = (
        "in servers of spec.rollout, whose cache has room for 5,425 of the 10,240 tokens of a sample, counted without"
    )
    assert last.startswith(f"Valid, and by the estimate it may not fit {where} ") and given.partition(":")[0] in last


@pytest.mark.parametrize("window", [4096, None])
def test_windows_are_counted_as_attention_to_all_tokens(
    window: int | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = {
        "model_type": "mistral",
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "vocab_size": 32768,
    }
    sizes = {
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "max_position_embeddings": 32768,
        "sliding_window": window,
    }
    (tmp_path / "config.json").write_text(json.dumps(model | sizes))
    job = EXAMPLES / "qwen2.5-7b-gsm8k/rljob.yaml"
    cache = "rollout.vllmArgs={kv-cache-memory-bytes: 100000000}"
    given = ["plan", "-f", str(job), "--model", str(tmp_path), "--offline", "--gpu", "h200", "--set", cache]
    assert main(given) == int(window is None)
    assert ("counted as if all layers attended to all tokens" in capsys.readouterr().out) == bool(window)
