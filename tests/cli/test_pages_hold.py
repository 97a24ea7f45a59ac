"""No spec, no config.json and no stored object makes a page of the plugin end in a traceback: `plan`, `status`, `list` and what they print."""

import json
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from cli.makers import NOW, make_event, make_job, make_spec, make_supervised, running
from kubectl_rljob.__main__ import main
from kubectl_rljob.job import Job
from kubectl_rljob.leaving import Leaving
from kubectl_rljob.planning import Plan
from kubectl_rljob.preview import Site, preview
from kubectl_rljob.printers import data, failure, status, text
from kubectl_rljob.printers import plan as plan_page
from kubectl_rljob.printers.plan_data import dump
from rljob_api.manifest import Manifest
from rljob_api.policy import DEFAULT_POLICY
from rljob_api.sizing.devices import Gpu
from rljob_placement.devices import Devices

EXAMPLES = Path(__file__).parents[2] / "examples"
MODELS = [json.loads(file.read_text()) for file in sorted(EXAMPLES.glob("*/config.json"))]
ROPE = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
MODELS += [
    MODELS[0] | {"model_type": "qwen3", "rope_scaling": ROPE},
    MODELS[0] | {"model_type": "llama", "rope_parameters": {"full_attention": ROPE}},
    {
        "model_type": "deepseek_v3", "num_hidden_layers": 61, "hidden_size": 7168, "num_attention_heads": 128, "num_key_value_heads": 128,
        "vocab_size": 129280, "intermediate_size": 18432, "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1,
        "num_experts_per_tok": 8, "n_group": 8, "topk_group": 4, "first_k_dense_replace": 3, "q_lora_rank": 1536, "kv_lora_rank": 512,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "rope_scaling": ROPE,
    },
    {
        "model_type": "qwen3_vl",
        "text_config": MODELS[0] | {"rope_scaling": {"rope_type": "default", "mrope_section": [24, 20, 20], "mrope_interleaved": True}},
        "vision_config": {
            "depth": 24, "hidden_size": 1024, "intermediate_size": 4096, "out_hidden_size": 2048, "in_channels": 3, "patch_size": 16,
            "temporal_patch_size": 2, "spatial_merge_size": 2, "deepstack_visual_indexes": [5, 11], "num_position_embeddings": 2304,
        },
    },
]  # fmt: skip
SPECS = [yaml.safe_load(file.read_text())["spec"] for file in sorted(EXAMPLES.glob("*/rljob.yaml"))]
SPECS += [make_spec(), *map(make_supervised, ("sft", "dpo", "rewardModel", "pretrain"))]
ODD = [
    None, True, False, 0, 1, -1, 7, 0.5, 1e300, 10**30, "", "a word", "8", "/data/../..", [], {}, [None], ["x"], [7], {"x": 1}, {"x": {"y": []}},
]  # fmt: skip
GONE = object()


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in inner:
        yield (*path, key)
        yield from places(below, (*path, key))


def put(value: Any, path: tuple[Any, ...], odd: Any) -> None:
    *above, last = path
    for key in above:
        value = value[key]
    if odd is GONE:
        del value[last]
    else:
        value[last] = odd


@st.composite
def spoilt(draw: st.DrawFn, values: list[Any]) -> Any:
    """One of the values, with up to three of its parts gone or replaced."""
    found = deepcopy(draw(st.sampled_from(values)))
    for _ in range(draw(st.integers(0, 3))):
        if somewhere := [*places(found)]:
            put(found, draw(st.sampled_from(somewhere)), draw(st.just(GONE) | st.sampled_from(ODD).map(deepcopy)))
    return found


def planned(spec: Any, config: Any, device: Gpu | None) -> str:
    found = Plan.of(Manifest("demo", "", spec), config, DEFAULT_POLICY, device=device)
    where = preview(found, Site(lambda: ([], []), lambda: (Devices(), "")), offline=False)
    shown = plan_page.page(found, where, Leaving())
    data.render([dump(found) | {"placement": where.dump()}], "json")
    assert bool(found.violations or found.misfits()) is not shown.rpartition("\n\n")[2].startswith("Valid")
    return shown


KEYS = {path: model for model in MODELS for path in places(model)}


@pytest.mark.parametrize("path", KEYS, ids=lambda path: ".".join(map(str, path)))
def test_a_plan_of_a_model_with_any_value_in_one_place_is_printed(path: tuple[Any, ...]) -> None:
    for odd in (GONE, *ODD):
        config = deepcopy(KEYS[path])
        put(config, path, deepcopy(odd))
        planned(deepcopy(SPECS[0]), config, Gpu(80 * 2**30))


@settings(max_examples=100)
@given(spec=spoilt(SPECS), config=st.none() | spoilt(MODELS), gpu=st.sampled_from([None, 4 * 2**30, 80 * 2**30]))
def test_a_plan_of_any_spec_and_any_model_is_printed(spec: Any, config: Any, gpu: int | None) -> None:
    planned(spec, config, Gpu(gpu) if gpu else None)


@pytest.mark.parametrize("task", ["rl", "sft", "dpo", "rewardModel", "pretrain"])
def test_a_job_that_does_not_say_how_long_it_trains_is_told_so(task: str) -> None:
    spec = make_spec() if task == "rl" else make_supervised(task)
    del spec["train"]["steps"]
    shown = planned(spec, None, None)
    assert "spec.train.steps" in shown and "1 rule is broken" in shown


@settings(max_examples=100)
@given(spec=spoilt(SPECS), state=spoilt([running()]), width=st.integers(20, 200))
def test_a_stored_job_of_any_kind_is_printed(spec: Any, state: Any, width: int) -> None:
    job = Job(make_job(spec=spec, **state))
    assert text.jobs([job], NOW, True, width)
    if job.unreadable:
        assert "status." in str(job.unreadable)
        return
    assert status.page(job, [make_event("Started", "message", minutes=3)], NOW, width)
    if last := job.status.last_failure:
        assert failure.screen(job, last, NOW, str)


MANIFESTS = [f for f in sorted(EXAMPLES.glob("*/*.yaml")) if "\nkind: RLJob\n" in f.read_text()]


@pytest.mark.parametrize("manifest", MANIFESTS, ids=[str(f.relative_to(EXAMPLES)) for f in MANIFESTS])
def test_the_examples_break_no_rule(capsys: pytest.CaptureFixture[str], manifest: Path) -> None:
    assert main(["plan", "-f", str(manifest), "--offline"]) == 0
    page = capsys.readouterr().out
    assert page.endswith("\nValid.\n")
    assert all(f"\n{fact}:" in page for fact in ("Layout", "Batch", "Tokens", "Model"))
