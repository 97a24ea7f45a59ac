"""The API server, with explicit timeouts. Answers are JSON as the server wrote it; every error becomes a UserError."""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from kubernetes.client import ApiClient, Configuration
from kubernetes.client.rest import RESTResponse
from kubernetes.config import ConfigException
from kubernetes.config.kube_config import KubeConfigLoader, KubeConfigMerger
from pydantic import ValidationError
from urllib3 import disable_warnings
from urllib3.exceptions import HTTPError, InsecureRequestWarning, SSLError
from yaml import YAMLError

from kubectl_rljob.errors import UserError
from kubectl_rljob.job import Job
from rljob_api import names
from rljob_api.policy import JobPolicy
from rljob_api.text import load_json

CONNECT_SECONDS = 10
READ_SECONDS = 30
CONNECT_RETRIES = 1
PAGE = 500
"""Objects in one page of a list of the whole cluster."""
JOBS = f"/apis/{names.API_VERSION}"

Query = dict[str, str]
RUNNING: Query = {"fieldSelector": "status.phase=Running"}


@dataclass(frozen=True)
class Place:
    """A running container."""

    namespace: str
    pod: str
    container: str


@dataclass(frozen=True)
class ClusterClient:
    """A connection and the namespace that commands work in."""

    client: ApiClient
    namespace: str

    @staticmethod
    def connect(
        kubeconfig: str | None, context: str | None, namespace: str | None, user: str | None = None
    ) -> "ClusterClient":
        """As kubectl chooses them: flag, KUBECONFIG or ~/.kube/config; the context's namespace, else `default`. Acts as `user` if one is given."""
        files = kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config"
        settings = Configuration()
        settings.retries = CONNECT_RETRIES
        try:
            merged = KubeConfigMerger(files).config
            if merged is None:
                raise UserError(f"kubeconfig: no such file: {files}", "kubectl config get-contexts --kubeconfig FILE")
            loader = KubeConfigLoader(merged, active_context=context)
            loader.load_and_set(settings)
        # ValueError: a certificate that is not base64
        except (ConfigException, OSError, YAMLError, ValueError) as error:
            raise UserError(f"kubeconfig: {error}", "kubectl config get-contexts") from error
        except (TypeError, AttributeError, KeyError) as error:  # the library takes the form of the file for granted
            raise UserError(f"kubeconfig: {files} is not of kind Config: {error}", "kubectl config view") from error
        if not settings.verify_ssl:  # the kubeconfig says so: kubectl does not warn of it either
            disable_warnings(InsecureRequestWarning)
        chosen = loader.current_context["context"]
        client = ApiClient(settings)
        if user:
            client.set_default_header("Impersonate-User", user)
        return ClusterClient(client, namespace or chosen.get("namespace") or "default")

    def job(self, name: str) -> Job:
        return Job(
            self._json("GET", self._job_path(self.namespace, name), what=f"rljob {name} in namespace {self.namespace}")
        )

    def jobs(self, all_namespaces: bool) -> list[Job]:
        """In the server's order, which is by namespace and name."""
        path = f"{JOBS}/{names.PLURAL}" if all_namespaces else self._job_path(self.namespace)
        where = "all namespaces" if all_namespaces else f"namespace {self.namespace}"
        return [Job(item) for item in self._items(path, what=f"rljobs in {where}")]

    def events(self, job: Job) -> list[dict[str, Any]]:
        """Events of this very object, unordered."""
        return self._events(job.namespace, {"kind": names.KIND, "name": job.name, "uid": job.uid})

    def pod_events(self, namespace: str, pod: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Events of this very pod, unordered."""
        return self._events(namespace, {"kind": "Pod", "uid": pod["metadata"]["uid"]})

    def _events(self, namespace: str, of: Query) -> list[dict[str, Any]]:
        """`of`: fields of the object that they are about."""
        selector = ",".join(f"involvedObject.{k}={v}" for k, v in of.items())
        path = f"/api/v1/namespaces/{quote(namespace)}/events"
        return self._items(path, {"fieldSelector": selector}, what=f"events in namespace {namespace}")

    def pods(self, job: Job, role: str, *, running: bool = False) -> list[str]:
        """Names of the role's pods."""
        query = {"labelSelector": names.selector(job.name, role)} | (RUNNING if running else {})
        items = self._items(self._pod_path(job.namespace), query, what=f"pods in namespace {job.namespace}")
        return sorted(item["metadata"]["name"] for item in items)

    def pod_spec(self, job: Job, role: str) -> dict[str, Any]:
        """Pod spec of the role's StatefulSet, as the operator made it; empty when there is none."""
        path = f"/apis/apps/v1/namespaces/{quote(job.namespace)}/statefulsets"
        query = {"labelSelector": names.selector(job.name, role)}
        items = self._items(path, query, what=f"statefulsets in namespace {job.namespace}")
        return items[0]["spec"]["template"]["spec"] if items else {}

    def pod(self, namespace: str, name: str) -> dict[str, Any]:
        return self._json("GET", self._pod_path(namespace, name), what=f"pod {name} in namespace {namespace}")

    def create_pod(self, namespace: str, body: dict[str, Any]) -> str:
        """Returns the pod's name."""
        name: str = body["metadata"]["name"]
        self._json("POST", self._pod_path(namespace), body=body, what=f"pod {name} in namespace {namespace}")
        return name

    def delete_pod(self, namespace: str, name: str) -> None:
        self._json("DELETE", self._pod_path(namespace, name), what=f"pod {name} in namespace {namespace}")

    def job_policy(self, namespace: str) -> JobPolicy:
        """The administrator's policy for all jobs, from the namespace of the operator."""
        what = f"configmap {names.JOB_POLICY} in namespace {namespace}"
        config_map = self._json(
            "GET", f"/api/v1/namespaces/{quote(namespace)}/configmaps/{names.JOB_POLICY}", what=what
        )
        try:
            return JobPolicy.model_validate_json(config_map["data"][names.JOB_POLICY_KEY])
        except (KeyError, ValidationError) as error:
            raise UserError(f"{what}: cannot be read by this release of the plugin") from error

    def serves(self, api: str) -> bool:
        """Whether the API server has a group in this version, such as `resource.k8s.io/v1`."""
        groups = self._json("GET", "/apis", what="API groups of the cluster").get("groups") or []
        return any(version.get("groupVersion") == api for group in groups for version in group["versions"])

    def everything(self, plural: str, fields: str = "", api: str = "api/v1") -> Iterator[dict[str, Any]]:
        """Objects of a kind in all namespaces, in pages, so that neither side holds all of them. `fields`: a field selector."""
        query = {"limit": str(PAGE)} | ({"fieldSelector": fields} if fields else {})
        while True:
            answer = self._list(f"/{api}/{plural}", query, what=f"{plural} of the cluster")
            yield from answer["items"] or []
            more = answer.get("metadata", {}).get("continue")
            if not more:
                return
            query["continue"] = more

    def log(self, job: Job, pod: str, query: Query) -> Iterator[bytes]:
        """The log as it comes. With follow there is no read timeout: silence is normal."""
        path = f"{self._pod_path(job.namespace, pod)}/log"
        read = None if "follow" in query else READ_SECONDS
        what = f"log of pod {pod} in namespace {job.namespace}"
        response = self._send("GET", path, query, what=what, read_seconds=read)
        try:
            yield from response.response.stream(65536)
        except HTTPError as error:
            raise UserError(f"{what}: the connection was lost: {error}") from error

    def annotate(self, job: Job, annotation: str, value: str) -> None:
        """Set one annotation of this very object: another one of the same name is refused by its UID."""
        body = {"metadata": {"uid": job.uid, "annotations": {annotation: value}}}
        self._json("PATCH", self._job_path(job.namespace, job.name), body=body, what=job.title)

    @staticmethod
    def _pod_path(namespace: str, name: str = "") -> str:
        return f"/api/v1/namespaces/{quote(namespace)}/pods" + (f"/{quote(name)}" if name else "")

    @staticmethod
    def _job_path(namespace: str, name: str | None = None) -> str:
        path = f"{JOBS}/namespaces/{quote(namespace, safe='')}/{names.PLURAL}"
        return path if name is None else f"{path}/{quote(name, safe='')}"

    def _items(self, path: str, query: Query | None = None, *, what: str) -> list[dict[str, Any]]:
        """Those of a list. Go writes one that holds nothing as null, too."""
        return self._list(path, query, what=what)["items"] or []

    def _list(self, path: str, query: Query | None, *, what: str) -> dict[str, Any]:
        answer = self._json("GET", path, query, what=what)
        if "items" not in answer:
            raise UserError(f"{what}: the answer is not a list", "kubectl cluster-info")
        return answer

    def _json(
        self, method: str, path: str, query: Query | None = None, body: Any = None, *, what: str
    ) -> dict[str, Any]:
        response = self._send(method, path, query or {}, body, what=what)
        try:
            answer = load_json(response.read())
        except HTTPError as error:
            raise UserError(f"{what}: the connection was lost: {error}", transient=True) from error
        except ValueError as error:
            raise UserError(f"{what}: the answer is not JSON: {error}", "kubectl cluster-info") from error
        if not isinstance(answer, dict):
            raise UserError(f"{what}: the answer is not a JSON object", "kubectl cluster-info")
        return answer

    def _send(
        self,
        method: str,
        path: str,
        query: Query,
        body: Any = None,
        *,
        what: str,
        read_seconds: int | None = READ_SECONDS,
    ) -> RESTResponse:
        form = "application/merge-patch+json" if method == "PATCH" else "application/json"
        headers = {"Accept": "application/json, */*", "Content-Type": form}
        request = self.client.param_serialize(
            method,
            path,
            query_params=list(query.items()),
            header_params=headers,
            body=body,
            auth_settings=["BearerToken"],
        )
        try:
            response = self.client.call_api(*request, _request_timeout=(CONNECT_SECONDS, read_seconds))
            if response.status < 300:
                return response
            raise refusal(response.status, response.read().decode(errors="replace"), what, path)
        except HTTPError as error:
            reason = getattr(error, "reason", None) or error
            raise UserError(
                f"{what}: cannot reach {self.client.configuration.host}: {reason}",
                "kubectl cluster-info",
                transient=not isinstance(reason, SSLError),
            ) from error


def refusal(status: int, body: str, what: str, path: str) -> UserError:
    """What an answer of the API server means for the user. `what`: kind, name and namespace."""
    try:
        message = str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        message = body.strip()
    if status == 404 and not body.lstrip().startswith("{"):
        return UserError(
            f"{what}: this cluster does not know the kind {names.KIND} ({names.API_VERSION})",
            f"kubectl get crd {names.PLURAL}.{names.GROUP}",
        )
    if status == 404:
        return UserError(f"{what}: not found", "kubectl rljob list -A")
    if status == 401:
        return UserError(f"{what}: the cluster does not accept your credentials", "kubectl auth whoami")
    if status == 403:
        namespace = path.split("/namespaces/")[1].split("/")[0] if "/namespaces/" in path else ""
        return UserError(
            f"{what}: {message}", f"kubectl auth can-i --list {'-n ' + namespace if namespace else ''}".rstrip()
        )
    if status == 400 and path.endswith("/log"):
        *_, namespace, _, pod, _ = path.split("/")
        return UserError(f"{what}: {message}", f"kubectl describe pod {pod} -n {namespace}")
    if status == 409 or (status == 422 and "metadata.uid" in message):
        return UserError(f"{what}: was changed or re-created meanwhile; try again")
    return UserError(f"{what}: {message} (HTTP {status})", transient=status == 429 or status >= 500)
