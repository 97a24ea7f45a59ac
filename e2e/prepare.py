"""The examples' volume, models and data on a cluster, and a pod to look at them."""

from collections.abc import Callable

import yaml

from e2e.job import EXAMPLES
from e2e.kube import Kube, Object, wait_for
from e2e.providers import Provider

CLAIM = "arithmetic"
PROGRAMS = "arithmetic-prepare"
WORKBENCH = "workbench"


def prepare(kube: Kube, provider: Provider, fresh: bool, say: Callable[[str], None] = print) -> None:
    """Claim, then model and data by examples/arithmetic/prepare.yaml; with `fresh`, whatever an earlier run left is deleted first."""
    if fresh:
        kube.kubectl(
            "delete",
            f"pod/{WORKBENCH}",
            "job/arithmetic-prepare",
            f"configmap/{PROGRAMS}",
            f"pvc/{CLAIM}",
            "--ignore-not-found",
            "--timeout=120s",
            timeout=150,
        )
    volume(kube, provider)
    say("preparing the example's model and data")
    run_preparation(kube, provider, "arithmetic")


def volume(kube: Kube, provider: Provider) -> None:
    """The claim, and a ConfigMap with the programs that fill it."""
    storage = _load("arithmetic/storage.yaml")
    storage["spec"]["storageClassName"] = provider.storage_class
    programs: Object = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": PROGRAMS},
        "data": {file: (EXAMPLES / "arithmetic" / file).read_text() for file in ("prepare.py", "warm-up.yaml")},
    }
    kube.apply(storage, programs)


def run_preparation(kube: Kube, provider: Provider, example: str) -> None:
    """The example's prepare.yaml, to its end. What arithmetic's made must be there for all others."""
    job = _load(f"{example}/prepare.yaml")
    name = job["metadata"]["name"]
    job["spec"]["template"]["spec"]["containers"][0]["image"] = provider.trainer_image
    kube.apply(job)
    wait_for(
        name,
        lambda: _finished(kube, name),
        timeout=900,
        describe=lambda: kube.kubectl("logs", f"job/{name}", "--tail=30"),
    )


def _finished(kube: Kube, name: str) -> bool:
    status = kube.get("job", name).get("status", {})
    if status.get("failed"):
        raise RuntimeError(f"{name} failed:\n" + kube.kubectl("logs", f"job/{name}", "--tail=30"))
    return bool(status.get("succeeded"))


def workbench(kube: Kube, provider: Provider) -> None:
    """A pod with the trainer's image, the volume at /data and the programs at /prepare, on any cluster: `kube.execute(WORKBENCH, ...)`."""
    container: Object = {
        "name": "workbench",
        "image": provider.trainer_image,
        "command": ["python", "-c", "import signal; signal.sigwait({signal.SIGTERM})"],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}, {"name": "programs", "mountPath": "/prepare"}],
    }
    volumes = [
        {"name": "data", "persistentVolumeClaim": {"claimName": CLAIM}},
        {"name": "programs", "configMap": {"name": PROGRAMS}},
    ]
    spec = {"containers": [container], "volumes": volumes, "terminationGracePeriodSeconds": 1}
    kube.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": WORKBENCH}, "spec": spec})
    kube.kubectl("wait", "--for=condition=Ready", f"pod/{WORKBENCH}", "--timeout=120s", timeout=150)


def read_file(kube: Kube, path: str) -> str:
    """A text file of the volume, through the workbench."""
    return kube.execute(WORKBENCH, "cat", path)


def _load(name: str) -> Object:
    return yaml.safe_load((EXAMPLES / name).read_text())
