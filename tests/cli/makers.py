"""Objects for screens. Times are before NOW."""

from datetime import UTC, datetime, timedelta
from typing import Any

from rljob_api import names, reasons

VOLUME = {"name": "data", "mountPath": "/data", "source": {"persistentVolumeClaim": {"claimName": "data"}}}
NOW = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)


def ago(**span: float) -> str:
    return (NOW - timedelta(**span)).isoformat(timespec="seconds").replace("+00:00", "Z")


def epoch(**span: float) -> float:
    return (NOW - timedelta(**span)).timestamp()


def make_spec(**sections: Any) -> dict[str, Any]:
    return {
        "image": "rljob/trainer:0.1.0",
        "model": {"path": "/data/model"},
        "data": {"train": ["/data/train.parquet"]},
        "rewards": [{"rule": "exactMatch"}],
        "train": {"steps": 500, "promptsPerStep": 64, "samplesPerPrompt": 8, "miniBatches": 2},
        "trainer": {"nodes": 2, "processesPerNode": 8, "parallelism": {"tensor": 4, "pipeline": 2}},
        "rollout": {"replicas": 4, "tensorParallel": 2},
        "checkpoint": {"path": "/data/run", "everySteps": 20},
        "volumes": [VOLUME],
    } | sections


def make_supervised(task: str = "sft", **sections: Any) -> dict[str, Any]:
    """The spec of a job without rollouts."""
    spec = make_spec(task=task, train={"steps": 500, "samplesPerStep": 64, "miniBatches": 2}, **sections)
    return {section: value for section, value in spec.items() if section not in ("rewards", "rollout")}


def make_job(name: str = "demo", spec: dict[str, Any] | None = None, **status: Any) -> dict[str, Any]:
    """A job in namespace research, created two days ago; without keyword arguments no operator has seen it."""
    metadata = {
        "name": name,
        "namespace": "research",
        "uid": f"uid-{name}",
        "creationTimestamp": ago(days=2),
        "annotations": {},
    }
    job = {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": metadata, "spec": spec or make_spec()}
    return job | ({"status": {"observedGeneration": 1, **status}} if status else {})


def fine_tuning(**progress: Any) -> dict[str, Any]:
    """The status of an sft job in the middle of its run."""
    history = [{"step": s, "loss": 2.0 - 0.01 * s, "seconds": 8.0} for s in range(97, 121)]
    return running() | {
        "lastFailure": None,
        "rollout": {"ready": 0, "desired": 0, "text": ""},
        "progress": {
            "step": 120,
            "steps": 500,
            "text": "120/500",
            "phase": "training",
            "metric": "loss 0.800",
            "metrics": {"train/loss": 0.8, "train/perplexity": 2.226},
            "history": history,
            "pace": 8.0,
            "evaluation": {"first": 2.5, "last": 1.25},
            "updatedAt": ago(seconds=9),
        }
        | progress,
    }


def make_checkpoint(step: int, minutes: float, attempt: int = 1) -> dict[str, Any]:
    path = f"/data/run/global_step_{step}"
    return {"step": step, "attempt": attempt, "path": path, "layout": "tp4-pp2-dp2", "time": epoch(minutes=minutes)}


def running() -> dict[str, Any]:
    """The status of a job in the middle of its run, after one failure."""
    kept = [make_checkpoint(60, 40), make_checkpoint(80, 25, attempt=2), make_checkpoint(100, 12, attempt=2)]
    history = [{"step": s, "reward": 0.3 + 0.005 * (s - 60), "loss": 0.01, "seconds": 8.0} for s in range(97, 121)]
    members = [
        {"pod": f"demo-trainer-{ordinal}", "podUid": "u", "bootId": "b", "nodeRank": rank, "address": "10.0.0.1"}
        for rank, ordinal in ((0, 1), (1, 0))
    ]
    return {
        "state": "Running",
        "message": "training",
        "attempt": {"number": 2, "startedAt": ago(minutes=33), "members": members},
        "restarts": {"total": 2, "counted": 1},
        "trainer": {"ready": 2, "desired": 2, "text": "2/2"},
        "rollout": {"ready": 4, "desired": 4, "text": "4/4"},
        "progress": {
            "step": 120,
            "steps": 500,
            "text": "120/500",
            "phase": "generating",
            "policyStep": 120,
            "metric": "reward 0.600",
            "metrics": {
                "reward/mean": 0.6,
                "train/loss": 0.0123,
                "train/kl": 0.004,
                "train/entropy": 0.71,
                "response_length/mean": 812.4,
                "train_rollout/log_prob_diff_mean": 0.002,
            },
            "history": history,
            "pace": 8.0,
            "backend": "transformer engine, nccl",
            "updatedAt": ago(seconds=9),
        },
        "checkpoint": {"latest": kept[-1], "kept": kept},
        "lastFailure": {
            "attempt": 1,
            "reason": reasons.APPLICATION_FAILED,
            "pod": "demo-trainer-1",
            "time": ago(minutes=34),
            "failure": {
                "kind": "application",
                "rank": 9,
                "exception": "OutOfMemoryError",
                "message": "CUDA out of memory. Tried to allocate 2.00 GiB\nGPU 1 has 139 GiB",
                "lines": ['  File "loss.py", line 12, in logits', "    return hidden @ weight.T"],
            },
        },
    }


def make_event(reason: str, message: str, name: str = "demo", **span: float) -> dict[str, Any]:
    return {
        "metadata": {"creationTimestamp": ago(**span)},
        "involvedObject": {"kind": names.KIND, "name": name, "uid": f"uid-{name}"},
        "reason": reason,
        "message": message,
        "lastTimestamp": ago(**span),
        "type": "Normal",
    }
