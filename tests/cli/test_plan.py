"""The page of plan, whole; it needs no cluster."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from api.model_configs import VISION
from cli.makers import make_spec, make_supervised
from kubectl_rljob.__main__ import main
from rljob_api import names

GOOD = """\
RLJob demo

Layout:  2 pods x 8 processes = 16 ranks = tensor 4 x pipeline 2 x data 2 (tp4-pp2-dp2)
Batch:   64 prompts x 8 samples = 512 samples per step
         2 mini-batches of 256 samples (32 prompts), 128 samples per data-parallel rank
         500 steps, 1,000 optimizer steps, 256,000 samples in all
Tokens:  at most 1,024 of the prompt + 1,024 of the response = 2,048 per sample, 1,048,576 per step
         at most 16,384 per micro-batch and data-parallel rank
Model:   qwen2: 24 layers, 16 heads, 4 key-value heads

ROLE      PODS   PROCESSES/POD   GPUS
trainer   2      8               16
rollout   4      2               8
total     6      -               24

Placement: not checked (--offline)

Valid.
"""

FINE_TUNING = """\
RLJob demo

Layout:  2 pods x 8 processes = 16 ranks = tensor 4 x pipeline 2 x data 2 (tp4-pp2-dp2)
Batch:   64 conversations per step
         2 mini-batches of 32 conversations, 16 conversations per data-parallel rank
         500 steps, 1,000 optimizer steps, 32,000 conversations in all
Tokens:  at most 2,048 per conversation, 131,072 per step
         at most 16,384 per micro-batch and data-parallel rank
Model:   not checked (--model checks heads and layers, and estimates memory)

ROLE      PODS   PROCESSES/POD   GPUS
trainer   2      8               16
total     2      -               16

Placement: not checked (--offline)

Valid.
"""

BAD = """\
RLJob demo

Layout:  2 pods x 8 processes = 16 ranks, against tensor 6 x pipeline 1
Batch:   64 prompts x 8 samples = 512 samples per step
Tokens:  at most 1,024 of the prompt + 1,024 of the response = 2,048 per sample, 1,048,576 per step
         at most 16,384 per micro-batch and data-parallel rank
Model:   qwen2: 24 layers, 16 heads, 4 key-value heads

ROLE      PODS   PROCESSES/POD   GPUS
trainer   2      8               16
rollout   4      2               8
total     6      -               24

5 rules are broken:

spec.trainer.parallelism = tensor 6 x pipeline 1 x context 1
    nodes x processesPerNode = 16 is not divisible by tensor x pipeline x context = 6
    fix: make spec.trainer.nodes x spec.trainer.processesPerNode a multiple of it, or lower one of the sizes

spec.train.miniBatches = 7
    the samples of a prompt stay in one mini-batch, and spec.train.promptsPerStep = 64 is not divisible by it
    fix: choose a divisor of spec.train.promptsPerStep

spec.rewards[0] = none
    needs exactly one of rule, python, http, vllm, model
    fix: keep one of them

spec.trainer.parallelism.tensor = 6
    tensor-parallel ranks exchange every layer's activations and must share a node, which has 8 ranks
    fix: raise spec.trainer.processesPerNode to a multiple of it, or lower tensor and raise pipeline

spec.trainer.parallelism.tensor = 6
    num_attention_heads = 16 of the model is not divisible by it, and num_key_value_heads = 4 of the model must be a multiple or a divisor of it
    fix: choose 1, 2, 4, 8 or 16
"""

UNREADABLE = """\
RLJob demo

2 rules are broken:

spec.train.steps = "many"
    must be a whole number
    fix: write a whole number

spec.rolout = {}
    there is no such field
    fix: did you mean rollout?
"""


def write(path: Path, *specs: dict[str, Any], **meta: Any) -> str:
    objects = [
        {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": {"name": "demo"} | meta, "spec": s}
        for s in specs
    ]
    file = path / "job.yaml"
    file.write_text(yaml.safe_dump_all([{"kind": "ConfigMap"}, *objects]))
    return str(file)


@pytest.fixture
def model(tmp_path: Path) -> str:
    config = {"model_type": "qwen2", "num_hidden_layers": 24, "num_attention_heads": 16, "num_key_value_heads": 4}
    (tmp_path / "config.json").write_text(json.dumps(config))
    return str(tmp_path)


def broken() -> dict[str, Any]:
    return make_spec(
        rewards=[{}],
        train={"steps": 500, "miniBatches": 7},
        trainer={"nodes": 2, "processesPerNode": 8, "parallelism": {"tensor": 6}},
    )


def test_a_good_manifest_is_spelled_out(tmp_path: Path, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "-f", write(tmp_path, make_spec()), "--model", model, "--offline"]) == 0
    assert capsys.readouterr().out == GOOD


def test_a_job_without_rollouts_is_spelled_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "-f", write(tmp_path, make_supervised()), "--offline"]) == 0
    assert capsys.readouterr().out == FINE_TUNING


def test_pairs_and_epochs_are_spelled_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = make_supervised("dpo") | {"train": {"epochs": 1.5}}
    assert main(["plan", "-f", write(tmp_path, spec), "--offline"]) == 0
    out = capsys.readouterr().out
    assert "64 pairs x 2 sequences = 128 sequences per step\n" in out
    assert "1 mini-batch of 128 sequences (64 pairs), 64 sequences per data-parallel rank\n" in out
    assert "1.5 epochs; the trainer counts the data and reports the steps\n" in out
    assert main(["plan", "-f", write(tmp_path, spec), "--offline", "-o", "json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["batch"] == {"samplesPerStep": 128, "samplesPerMiniBatch": 128, "tokensPerStep": 128 * 2048}
    assert [role["name"] for role in found["roles"]] == ["trainer"]


def test_all_broken_rules_are_named_at_once(tmp_path: Path, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "-f", write(tmp_path, broken()), "--model", model, "--offline"]) == 1
    assert capsys.readouterr().out == BAD


def test_adapters_to_begin_from_are_checked_with_all_other_rules(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given, manifest = tmp_path / "adapter", tmp_path / "job"
    given.mkdir()
    manifest.mkdir()
    (given / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 4, "lora_alpha": 32}))
    spec = make_spec(model={"path": "/data/model", "lora": {"path": "/data/adapter", "rank": 8}}, rewards=[{}])
    run = ["plan", "-f", write(manifest, spec), "--offline", "--adapters"]
    assert main([*run, str(given)]) == 1
    out = capsys.readouterr().out
    assert "the adapters in /data/adapter have r = 4" in out and "spec.rewards[0]" in out
    assert main([*run, str(tmp_path)]) == 1
    assert "--adapters: cannot read " in capsys.readouterr().err
    assert main(["plan", "-f", write(manifest, make_spec()), "--offline", "--adapters", str(given)]) == 1
    assert "no job begins from adapters" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "targets", "said"),
    [
        ("qwen3_moe", None, "linear_qkv, linear_proj"),
        ("qwen3_moe", ["linear_q", "linear_v"], "linear_q, linear_v"),
        ("", ["linear_proj"], "linear_proj"),
        ("", None, "all that the model's family has them for"),
        ("qwen3_moe", ["linear_fc1"], ""),
    ],
)
def test_the_matrices_that_get_adapters_are_named(
    kind: str, targets: list[str] | None, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    lora = {"rank": 8} | ({"targets": targets} if targets else {})
    spec = make_spec(model={"path": "/data/model", "lora": lora})
    known = ["--model", str(tmp_path)] if kind else []
    assert main(["plan", "-f", write(tmp_path, spec), "--offline", *known]) == (not said)
    lines = [line for line in capsys.readouterr().out.splitlines() if "adapters of rank" in line]
    assert lines == ([f"         adapters of rank 8 next to {said}"] if said else [])


def test_a_model_with_a_section_of_its_own_for_language_is_spelled_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(VISION))
    main(["plan", "-f", write(tmp_path, make_spec()), "--offline", "--model", str(tmp_path)])
    text = VISION["text_config"]
    sizes = f"{text['num_hidden_layers']} layers, {text['num_attention_heads']} heads, {text['num_key_value_heads']} key-value heads"
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("Model:"))
    assert line.startswith(f"Model:   {VISION['model_type']}: {sizes}") and line.endswith(", a vision tower")


def test_the_sizes_on_the_page_multiply_to_the_ranks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = {"nodes": 2, "processesPerNode": 8, "parallelism": {"tensor": 2, "context": 2}}
    assert main(["plan", "-f", write(tmp_path, make_spec(trainer=trainer)), "--offline"]) == 0
    assert "= 16 ranks = tensor 2 x pipeline 1 x context 2 x data 4 (tp2-pp1-dp4-cp2)\n" in capsys.readouterr().out


def test_a_manifest_that_is_no_spec_names_the_fields(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = make_spec(train={"steps": "many"}, rolout={})
    assert main(["plan", "-f", write(tmp_path, spec)]) == 1
    assert capsys.readouterr().out == UNREADABLE


def test_values_of_the_command_line_are_checked_as_those_of_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path, make_spec())
    assert main(["plan", "-f", file, "--offline", "--set", "train.steps=7", "--set", "train.miniBatches=4"]) == 0
    assert "7 steps, 28 optimizer steps" in capsys.readouterr().out
    assert main(["plan", "-f", file, "--offline", "--set", "train.lr=1e-6"]) == 1
    assert capsys.readouterr().out.endswith(
        "spec.train.lr = 1e-06\n    there is no such field\n    fix: it is called spec.train.optimizer.learningRate here\n"
    )
    assert main(["plan", "-f", file, "--set", "image.tag=1"]) == 1
    assert capsys.readouterr().err.startswith("error: --set image.tag=1: spec.image = ")


def test_every_job_of_a_file_is_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path, make_spec(), broken())
    assert main(["plan", "-f", file, "-o", "json"]) == 1
    first, second = json.loads(capsys.readouterr().out)
    assert first["layout"] == {
        "world": 16,
        "tensor": 4,
        "pipeline": 2,
        "data": 2,
        "context": 1,
        "expert": 1,
        "expertTensor": 4,
        "virtualPipeline": 1,
    }
    assert first["violations"] == []
    assert {v["field"] for v in second["violations"]} >= {"spec.train.miniBatches", "spec.rewards[0]"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [", "is not YAML: "),
        ("kind: Pod", "holds no RLJob (found: Pod)"),
        ("kind: RLJob\napiVersion: rljob.dev/v1", "apiVersion = rljob.dev/v1: must be rljob.dev/v1alpha1"),
        ("kind: RLJob\napiVersion: rljob.dev/v1alpha1", "metadata.name is missing"),
        ("kind: RLJob\napiVersion: rljob.dev/v1alpha1\nmetadata: {name: x}", "spec is missing"),
        (
            "kind: RLJob\napiVersion: rljob.dev/v1alpha1\nmetadata: {name: {x: 1}}",
            'metadata.name = {"x": 1}: must be a text',
        ),
    ],
)
def test_a_file_that_holds_no_job_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    (tmp_path / "job.yaml").write_text(text)
    assert main(["plan", "-f", str(tmp_path / "job.yaml")]) == 1
    assert said in capsys.readouterr().err


def test_a_missing_file_or_model_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "-f", "nowhere.yaml"]) == 1
    assert capsys.readouterr().err == "error: cannot read nowhere.yaml: No such file or directory\n"
    assert main(["plan", "-f", write(tmp_path, make_spec()), "--model", str(tmp_path)]) == 1
    assert "--model: cannot read " in capsys.readouterr().err


def test_workers_have_a_line_of_their_own_and_no_gpus(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    agent = {"python": {"path": "/data/agent.py"}, "maxTurns": 2, "maxTokens": 16, "workers": {"replicas": 4}}
    spec = make_spec(rollout={"agent": agent, "sampling": {"maxTokens": 8}})
    assert main(["plan", "-f", write(tmp_path, spec), "--offline"]) == 0
    (line,) = (line for line in capsys.readouterr().out.split("\n") if line.startswith("worker"))
    assert line.split() == ["worker", "4", "0", "0"]
    agent["workers"] |= {"autoscaling": {"minReplicas": 2}}
    spec = make_spec(rollout={"agent": agent, "sampling": {"maxTokens": 8}})
    assert main(["plan", "-f", write(tmp_path, spec), "--offline"]) == 0
    (line,) = (line for line in capsys.readouterr().out.split("\n") if line.startswith("worker"))
    assert line.split() == ["worker", "2", "to", "4", "0", "0"], "the largest number counts for limits"
    spec = make_spec(rewards=[{"rule": "math", "workers": {"replicas": 3}}])
    assert main(["plan", "-f", write(tmp_path, spec), "--offline"]) == 0
    (line,) = (line for line in capsys.readouterr().out.split("\n") if line.startswith("scorer0"))
    assert line.split() == ["scorer0", "3", "0", "0"]


def test_sandboxes_have_a_line_of_their_own_and_no_gpus(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    agent = {"python": {"path": "/data/agent.py"}, "maxTurns": 2, "maxTokens": 16}
    environments = [{"name": "python", "replicas": 8}]
    spec = make_spec(rollout={"agent": agent, "sampling": {"maxTokens": 8}}, environments=environments)
    assert main(["plan", "-f", write(tmp_path, spec), "--offline"]) == 0
    (line,) = (line for line in capsys.readouterr().out.split("\n") if line.startswith("sandbox0"))
    assert line.split() == ["sandbox0", "8", "0", "0"]


def test_a_pool_has_a_line_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pool = {"name": "judge", "model": "/data/judge", "replicas": 2, "tensorParallel": 4}
    spec = make_spec(pools=[pool], rewards=[{"vllm": {"pool": "judge"}}])
    assert main(["plan", "-f", write(tmp_path, spec), "--offline"]) == 0
    out = capsys.readouterr().out
    assert "judge     2      4               8\ntotal     8      -               32\n" in out


def test_a_gang_has_a_line_of_its_own_and_its_layout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gang = {"nodes": 2, "processesPerNode": 4, "parallelism": {"tensor": 4}}
    spec = make_spec(reference=gang, algorithm={"kl": {"coefficient": 0.01}})
    assert main(["plan", "-f", write(tmp_path, spec), "--offline"]) == 0
    out = capsys.readouterr().out
    assert (
        "\n         reference: 2 pods x 4 processes = 8 ranks = tensor 4 x pipeline 1 x data 2 (tp4-pp1-dp2)\n" in out
    )
    assert "reference   2      4               8\n" in out
    assert main(["plan", "-f", write(tmp_path, spec), "--offline", "-o", "json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert {"name": "reference", "pods": 2, "gpus": 8} in found["roles"]
    assert (found["gangs"]["reference"]["tensor"], found["gangs"]["reference"]["data"]) == (4, 2)


@pytest.mark.parametrize("value", ["!!int x", "7" * 5000, "[" * 3000 + "]" * 3000], ids=lambda value: value[:8])
def test_a_value_that_no_reader_of_yaml_can_read(
    value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rljob.yaml"
    file.write_text(f"kind: RLJob\nmetadata: {{name: demo}}\nspec: {{image: {value}}}\n")
    assert main(["plan", "--offline", "-f", str(file)]) == 1
    assert capsys.readouterr().err.startswith(f"error: {file}: is not YAML: it ")


def test_an_image_that_nobody_has_published_is_named_with_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "job.yaml"
    for image, is_said in (("registry.invalid/rljob/trainer:0.1.0", True), ("mine/trainer:1", False)):
        head = {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": {"name": "demo"}}
        file.write_text(yaml.safe_dump(head | {"spec": make_spec(image=image)}))
        assert main(["plan", "--offline", "-f", str(file)]) == 0
        said = f"Image {image}: no image of RLJob is published yet: build the image and push it (docs/quickstart.md)"
        assert (said in capsys.readouterr().out) is is_said
