"""A real kube-apiserver on etcd alone, on loopback ports, for a test or a benchmark; with controllers and a scheduler if wanted. No kubelets.

The programs are those of the local cluster (see cluster/binaries.py). Everything it writes lies in one directory.
"""

import json
import os
import ssl
import subprocess
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from e2e.cluster.binaries import COMPONENTS, build, is_built
from e2e.cluster.steps import BIN, REPOSITORY
from rljob_trainer.machine import free_port

TOKEN = "loopback"
"""Of the administrator. The server listens on 127.0.0.1 only and lives as long as its test."""
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
NEEDED = ("kubernetes", "etcd")
READY_SECONDS = 300.0


class Spawner:
    """Programs that run in a directory until `stop`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._processes: list[subprocess.Popen[bytes]] = []

    def spawn(self, name: str, *command: str | Path) -> subprocess.Popen[bytes]:
        """A process that ends with us; its output goes to a file."""
        with (self.directory / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=self.directory)
        self._processes.append(process)
        return process

    def until(self, what: str, ready: Callable[[], object]) -> None:
        """Wait until `ready()` is true; an OSError says no."""
        end = time.monotonic() + READY_SECONDS
        while True:
            try:
                if ready():
                    return
            except OSError:
                pass
            if time.monotonic() > end:
                raise TimeoutError(f"{what} is not ready after {READY_SECONDS} s; see {self.directory}/*.log")
            time.sleep(0.1)

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.kill()
            process.wait(timeout=30)
        self._processes.clear()

    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]


class ControlPlane(Spawner):
    """`with ControlPlane(directory) as plane:`. Ends every process that it started.

    `managers`: also run the controller manager and the scheduler, each at `qps` requests a second (None: as they are delivered, 20 and 50); the
    server never limits them. `gates`: feature gates of all programs, with which all beta APIs are served; `controllers`: those that run, as
    `--controllers` has them.
    """

    prefix: tuple[str, ...] = ()
    """Before the command of a program that has its loopback."""

    def __init__(
        self,
        directory: Path,
        *,
        managers: bool = False,
        qps: int | None = 500,
        gates: Sequence[str] = (),
        controllers: str = "*",
    ) -> None:
        super().__init__(directory)
        self._managers, self._qps = managers, qps
        self._gates = [f"--feature-gates={','.join(f'{gate}=true' for gate in gates)}"] if gates else []
        self._controllers = controllers
        self._etcd, self._peer, self._port = free_ports(3)

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self._port}"

    @property
    def kubeconfig(self) -> Path:
        return self.directory / "kubeconfig"

    def login(self) -> dict[str, Any]:
        """For programs that run with this prefix."""
        return kubeconfig(self.url)

    def __enter__(self) -> Self:
        for component in COMPONENTS:
            if component.name in NEEDED and not is_built(component):
                build(component)
        self.directory.mkdir(parents=True, exist_ok=True)
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.stop()

    def write_kubeconfig(self, path: Path, server: str) -> Path:
        """For a client of `server`, which is this one or a proxy before it."""
        path.write_text(yaml.safe_dump(kubeconfig(server)))
        return path

    def install_crd(self, file: Path = REPOSITORY / "crds" / "rljob.yaml") -> None:
        crd = yaml.safe_load(file.read_text())
        self.call("POST", CRDS, crd)
        name, spec = crd["metadata"]["name"], crd["spec"]
        where = f"{CRDS}/{name}"
        served = f"/apis/{spec['group']}/{next(v['name'] for v in spec['versions'] if v['served'])}"
        self.until(name, lambda: established(self.call("GET", where)) and _lists(self.call("GET", served), spec))

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """One request as the administrator. Raises urllib.error.HTTPError."""
        data = json.dumps(body).encode() if body is not None else None
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, data=data, method=method, headers=headers)
        with urllib.request.urlopen(request, context=unverified(), timeout=60) as response:
            text = response.read()
            return json.loads(text) if response.headers.get_content_type() == "application/json" else text.decode()

    def _start(self) -> None:
        client, peer = f"http://127.0.0.1:{self._etcd}", f"http://127.0.0.1:{self._peer}"
        own = (f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=default={peer}", "--unsafe-no-fsync")
        urls = (f"--listen-client-urls={client}", f"--advertise-client-urls={client}", f"--listen-peer-urls={peer}")
        self.spawn("etcd", BIN / "etcd", "--data-dir=etcd", "--log-level=warn", *urls, *own)
        self.spawn("kube-apiserver", BIN / "kube-apiserver", *self._server_flags(client))
        self.write_kubeconfig(self.kubeconfig, self.url)
        self.until("kube-apiserver", lambda: self.call("GET", "/readyz") == "ok")
        if self._managers:
            self._start_managers()

    def _server_flags(self, etcd: str) -> list[str]:
        key = self.directory / "sa.key"
        subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
        (self.directory / "tokens.csv").write_text(f'{TOKEN},admin,admin,"system:masters"\n')
        return [
            f"--etcd-servers={etcd}",
            f"--secure-port={self._port}",
            "--bind-address=127.0.0.1",
            f"--cert-dir={self.directory}/certificates",
            "--token-auth-file=tokens.csv",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--service-cluster-ip-range=10.0.0.0/16",
            "--authorization-mode=RBAC",
            "--disable-admission-plugins=ServiceAccount",
            "--max-requests-inflight=0",
            "--enable-priority-and-fairness=false",
            *([*self._gates, "--runtime-config=api/beta=true"] if self._gates else []),
        ]

    def _start_managers(self) -> None:
        rates = (f"--kube-api-qps={self._qps}", f"--kube-api-burst={self._qps}") if self._qps else ()
        limits = (*rates, *self._gates, "--leader-elect=false")
        config = f"--kubeconfig={self.kubeconfig}"
        tokens = f"--service-account-private-key-file={self.directory}/sa.key"
        for name, flags in (
            ("kube-controller-manager", (tokens, "--secure-port=0", f"--controllers={self._controllers}")),
            ("kube-scheduler", ("--secure-port=0",)),
        ):
            self.spawn(name, BIN / name, config, *limits, *flags)


def established(crd: Any) -> bool:
    conditions: Sequence[Any] = crd.get("status", {}).get("conditions") or []  # null at first
    return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)


def _lists(resources: Any, spec: Any) -> bool:
    """Whether clients that look for the kind find it: discovery follows a CRD that is established."""
    return any(found["name"] == spec["names"]["plural"] for found in resources["resources"])


def acting(config: dict[str, Any], account: str) -> dict[str, Any]:
    """The kubeconfig of an administrator, who acts as another account with it."""
    (user,) = config["users"]
    return config | {"users": [user | {"user": user["user"] | {"as": account}}]}


def kubeconfig(server: str) -> dict[str, Any]:
    cluster = {"server": server} | ({"insecure-skip-tls-verify": True} if server.startswith("https") else {})
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": {"token": TOKEN}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }


def free_ports(count: int) -> list[int]:
    """All different, and none that the system would give to somebody else before it is used."""
    found = set[int]()
    while len(found) < count:
        found.add(free_port())
    return list(found)


def unverified() -> ssl.SSLContext:
    """The server's certificate is its own, made at its start."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def available() -> bool:
    """Whether the programs are there or can be built."""
    return all((BIN / program).exists() for program in ("etcd", "kube-apiserver")) or bool(
        os.environ.get("RLJOB_BUILD")
    )
