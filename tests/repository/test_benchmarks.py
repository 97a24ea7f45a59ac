"""What the benchmarks share: a mistake in it would show on a GPU machine, which is there for minutes."""

import math
import subprocess
import sys
from argparse import Namespace
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType, SimpleNamespace

import psutil
import pytest
import torch
from safetensors.torch import save_file

from benchmarks import (
    asynchrony,
    changed_weights,
    first_step,
    generation,
    gpu_time,
    jobs,
    scratch,
    shapes,
    step,
    unproven,
)
from benchmarks.gpu_time import Kernel
from benchmarks.queue import Queue
from rljob_api.spec import RLJobSpec

IGNORES_SIGNALS = "trap '' TERM; setsid sleep 600 & echo $!; while true; do sleep 0.1; done"
ENDS_LATE = "setsid sleep 600 & echo $!; sleep 600"


def test_a_job_that_ignores_signals_is_killed_with_what_it_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "GOODBYE_SECONDS", 1.0)
    process = subprocess.Popen(["bash", "-c", IGNORES_SIGNALS], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    started = psutil.Process(int(process.stdout.readline()))
    assert jobs.stop(process) < 0
    started.wait(10)


def test_a_job_gets_a_gpu_of_its_track_in_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    assert jobs.one_gpu(1) == {"CUDA_VISIBLE_DEVICES": "3"}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert jobs.one_gpu(0) == {"CUDA_VISIBLE_DEVICES": ""}


def test_the_policy_before_any_training_is_no_step() -> None:
    rows = {0: {"time/sync": 3.0}, 1: {"time/generate": 1.0, "time/step": 5.0, "time/sync": 0.7}, 2: {"time/sync": 0.7}}
    assert jobs.trained(rows) == 1


def test_rates_of_a_step_and_of_its_responses_have_columns_of_their_own() -> None:
    measured = {"time/step": 5.0, "perf/tokens_per_s": 600.0, "rollout/tokens_per_s": 1000.0}
    (row,) = jobs.summary(jobs.Ended(0, 9.0, "", {1: measured}), 1, tuple(measured))
    assert row == {"step": 1, "seconds": 5.0, "tokens_per_s": 600.0, "response_tokens_per_s": 1000.0}


@pytest.mark.parametrize("benchmark", [first_step, step])
def test_the_job_of_a_benchmark_is_valid(benchmark: ModuleType, tmp_path: Path) -> None:
    spec = benchmark.job(benchmark.parser().parse_args([]), tmp_path, tmp_path)
    assert RLJobSpec.model_validate(spec | {"image": "none"}).train.prompts_per_step > 0


def test_rules_about_what_is_proven_are_lifted_in_children_too() -> None:
    found = (
        "from rljob_api.families import FAMILIES; from rljob_api.rules import exact;"
        "print({f.servers for f in FAMILIES.values()} | {tuple(exact.FAMILIES)},"
        "      exact.FAMILIES['gpu'] == exact.FAMILIES['cpu'])"
    )
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {found!r}], check=True)"
    done = subprocess.run(
        [sys.executable, "-c", child], env=unproven.environment(), stdout=subprocess.PIPE, text=True, check=True
    )
    assert done.stdout.strip() == "{('cpu', 'gpu')} True"


@pytest.mark.parametrize(
    ("command", "ended"), [("setsid sleep 600 & echo $!; exit 3", "exit 3"), (ENDS_LATE, "not at its end")]
)
def test_nothing_that_a_run_started_is_there_when_the_next_one_begins(tmp_path: Path, command: str, ended: str) -> None:
    queue = Queue(tmp_path, tmp_path)
    left = f"kill -0 $(head -1 {tmp_path}/first.log)"
    queue.work_off(
        {
            "gpus": 0,
            "runs": {"first": {"seconds": 1, "run": command}, "second": {"seconds": 60, "run": left}},
        }
    )
    log = (tmp_path / "queue.log").read_text()
    assert f"first: {ended}" in log
    assert "second: exit 1" in log, "what the first one started lives on"


def test_runs_of_a_queue_have_a_directory_each_and_share_models(tmp_path: Path) -> None:
    queue = Queue(tmp_path / "logs", tmp_path)
    shared = "from benchmarks import scratch; print(scratch.SHARED)"
    found = {}
    for name in ("first", "second"):
        command = f'echo $TMPDIR && {sys.executable} -c "{shared}"'
        queue.work_off({"gpus": "", "runs": {name: {"seconds": 60, "run": command}}})
        found[name] = (tmp_path / f"logs/{name}.log").read_text().splitlines()
    assert found == {name: [f"{tmp_path}/{name}", f"{tmp_path}"] for name in ("first", "second")}


def test_runs_of_a_benchmark_share_no_directory_and_leave_none_but_a_given_one(tmp_path: Path) -> None:
    with scratch.directory(None, "step") as one, scratch.directory(None, "step") as other:
        assert one != other and one.is_dir() and other.is_dir()
    assert not one.exists() and not other.exists()
    with scratch.directory(tmp_path / "given/one", "step") as given:
        assert given == tmp_path / "given/one"
    assert given.is_dir()


def test_no_benchmark_names_a_directory_that_all_its_runs_would_share() -> None:
    """The temporary directory is named where models are shared and a queue divides it; others ask those, or for a new one."""
    named = {file.name for file in Path(jobs.__file__).parent.rglob("*.py") if "gettempdir" in file.read_text()}
    assert named == {"scratch.py", "queue.py"}


def test_a_model_is_written_once_however_many_want_it_and_not_read_before_it_is_complete(tmp_path: Path) -> None:
    written = []

    def write(directory: Path) -> None:
        directory.mkdir()
        (directory / "config.json").touch()
        written.append((tmp_path / "model").exists())
        (directory / "weights").touch()

    with ThreadPoolExecutor(4) as runs:
        read = list(runs.map(lambda _: [*scratch.once(tmp_path / "model", write).glob("weights")], range(4)))
    assert read == [[tmp_path / "model/weights"]] * 4 and written == [False]


def test_a_model_that_was_half_written_is_written_again(tmp_path: Path) -> None:
    def killed(directory: Path) -> None:
        directory.mkdir()
        (directory / "config.json").touch()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        scratch.once(tmp_path / "model", killed)
    assert not (tmp_path / "model").exists()
    scratch.once(tmp_path / "model", lambda new: (new.mkdir(), (new / "weights").touch()))
    assert [file.name for file in (tmp_path / "model").iterdir()] == ["weights"]


def test_a_benchmark_that_wants_a_model_otherwise_leaves_the_shared_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shapes, "MODEL", tmp_path / "rljob-bench-1.5b")
    shared = shapes.model_of("tiny")
    before = {file.name: (file.stat().st_mtime_ns, file.read_bytes()) for file in shared.iterdir()}
    assert {"config.json", "tokenizer.json", "model.safetensors", asynchrony.GENERATION} <= before.keys()
    for run in ("first", "second"):
        model, data = asynchrony.prepared(Namespace(work=tmp_path / run, size="tiny"))
        assert (model / "model.safetensors").samefile(shared / "model.safetensors")
        assert len((model / asynchrony.GENERATION).read_text()) > 20 and (data / "train.parquet").is_file()
    assert {file.name: (file.stat().st_mtime_ns, file.read_bytes()) for file in shared.iterdir()} == before


def test_kernels_at_the_same_time_count_once_and_the_rows_add_up_to_the_whole() -> None:
    gemm, norm, adam = (0, 100e3, "nvjet_tst_192x192"), (20e3, 50e3, "rmsnorm_bwd"), (160e3, 400e3, "AdamFunctor")
    rows = gpu_time.summed([Kernel(*gemm), Kernel(*norm), Kernel(*adam)], {"optimizer": 60e-3})
    milliseconds = {row["kind"]: row["ms"] * gpu_time.STEPS for row in rows}
    assert milliseconds == {"optimizer": 240, "matrix products": 70, gpu_time.IDLE: 60, "norm": 30}
    assert rows[0]["of_bound"] == 0.5


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128", "attention"),
        ("void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<...", "attention"),
        ("_gradient", "log-probabilities"),
        ("nvjet_tst_256x128_64x4_2x1_v_bz_coopA_TNN", "matrix products"),
        ("void transformer_engine::normalization::rmsnorm_fwd_tuned_kernel<...", "norm"),
        ("void transformer_engine::multi_tensor_adam::AdamFunctorMaster<...", "optimizer"),
        ("multi_tensor_apply_kernel<L2NormFunctor<float>>", "optimizer"),
        ("Memset (Device)", "copies and zeros"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>", "copies and zeros"),
        ("triton_poi_fused_mul_silu_0", gpu_time.OTHER),
        ("void transformer_engine::fused_rope_forward_kernel<...", gpu_time.OTHER),
    ],
)
def test_a_kernel_has_the_kind_that_its_name_says(kernel: str, kind: str) -> None:
    assert gpu_time.kind(kernel) == kind


def test_the_tail_says_when_each_part_of_the_responses_was_complete() -> None:
    ends = [SimpleNamespace(metrics=SimpleNamespace(queued_ts=10.0, last_token_ts=10.0 + i)) for i in range(100, 0, -1)]
    assert generation.tail(ends) == {"half": 50.0, "nine_tenths": 90.0, "99%": 99.0, "all": 100.0}


def test_a_weight_counts_as_changed_when_its_bfloat16_differs(tmp_path: Path) -> None:
    for number, weights in ((1, [1.0, 2.0, 3.0, 4.0]), (2, [1.0, 2.0001, 3.5, 4.0])):
        (tmp_path / f"exports/step_{number}").mkdir(parents=True)
        save_file({"w": torch.tensor(weights)}, tmp_path / f"exports/step_{number}/model.safetensors")
    line = {"step": 2, "changed": 0.25, "bytes": round((2 - 0.75 * math.log2(3)) / 16 + 0.25, 6)}
    assert list(changed_weights.updates(tmp_path)) == [line]
