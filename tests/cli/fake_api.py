"""An API server as far as the plugin speaks to one: real HTTP, objects in memory, every request remembered."""

import json
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, urlsplit

from rljob_api import names
from rljob_placement.devices import API
from web_server import answering

JOBS = f"/apis/{names.API_VERSION}"
POD_UID = "uid-of-created"
"""Of each pod that is created here."""


@dataclass
class FakeApi:
    """Objects by (namespace, name), logs by pod; `refuse` answers everything with one status and message."""

    jobs: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    logs: dict[str, bytes] = field(default_factory=dict)
    pod_roles: dict[str, str] = field(default_factory=dict)
    nodes: list[dict[str, Any]] = field(default_factory=list)
    pods: list[dict[str, Any]] = field(default_factory=list)
    devices: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Objects of Dynamic Resource Allocation, by plural; without any, the API server does not serve them."""
    job_policy: dict[str, Any] | None = None
    """Of the chart's values."""
    statefulsets: list[dict[str, Any]] = field(default_factory=list)
    created: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Pods by name that were created here and are not deleted."""
    pod_states: list[dict[str, Any]] = field(default_factory=lambda: [{"phase": "Running"}])
    """Statuses of created pods, one for each look; the last one stays."""
    refuse: tuple[int, str] | None = None
    refusals: list[tuple[int, str]] = field(default_factory=list)
    """Answers to the next requests, one each."""
    installed: bool = True
    requests: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    users: list[str | None] = field(default_factory=list)
    """Whom each request acts as."""

    def add(self, job: dict[str, Any]) -> None:
        self.jobs[job["metadata"]["namespace"], job["metadata"]["name"]] = job

    def answer(self, method: str, path: str, query: dict[str, str], body: dict[str, Any] | None) -> tuple[int, Any]:
        """(HTTP status, JSON object or bytes)."""
        self.requests.append((method, path, query))
        if self.refusals:
            code, message = self.refusals.pop()
            return code, _status(code, message)
        if self.refuse:
            return self.refuse[0], _status(*self.refuse)
        if path.startswith(JOBS):
            return self._job(method, path.removeprefix(JOBS).strip("/").split("/"), body)
        if path in ("/api/v1/nodes", "/api/v1/pods"):
            return 200, self._page(self.nodes if path.endswith("nodes") else self.pods, query)
        if path == "/apis":
            return 200, {"groups": [{"versions": [{"groupVersion": API}]}] if self.devices else []}
        if path.startswith(f"/apis/{API}/"):
            return 200, self._page(self.devices.get(path.rpartition("/")[2], []), query)
        if path.endswith(f"/configmaps/{names.JOB_POLICY}"):
            return self._job_policy(path)
        if path == "/apis/apps/v1/namespaces/research/statefulsets":
            return 200, {"items": self.statefulsets}
        if path == "/api/v1/namespaces/research/pods" and method == "POST" and body:
            body["metadata"]["uid"] = POD_UID
            self.created[body["metadata"]["name"]] = body
            return 201, body
        if (name := path.removeprefix("/api/v1/namespaces/research/pods/")) in self.created:
            return 200, self._created(method, name)
        return self._core(path.removeprefix("/api/v1/namespaces/").split("/"), query)

    def _page(self, objects: list[dict[str, Any]], query: dict[str, str]) -> dict[str, Any]:
        """The API server pages only lists that may not come from its cache (resourceVersion=0)."""
        first = int(query.get("continue", 0))
        after = first + int(query["limit"]) if "resourceVersion" not in query else len(objects)
        return {"metadata": {"continue": str(after) if after < len(objects) else ""}, "items": objects[first:after]}

    def _job_policy(self, path: str) -> tuple[int, Any]:
        if self.job_policy is None or path.split("/")[4] != names.OPERATOR_NAMESPACE:
            return 404, _status(404, f'configmaps "{names.JOB_POLICY}" not found')
        return 200, {"data": {names.JOB_POLICY_KEY: json.dumps(self.job_policy)}}

    def _job(self, method: str, parts: list[str], body: dict[str, Any] | None) -> tuple[int, Any]:
        if not self.installed:
            return 404, b"404 page not found\n"
        if parts == [names.PLURAL]:
            return 200, {"items": list(self.jobs.values())}
        _, namespace, _, *name = parts
        if not name:
            return 200, {"items": [j for (ns, _), j in self.jobs.items() if ns == namespace]}
        job = self.jobs.get((namespace, name[0]))
        if job is None:
            return 404, _status(404, f'rljobs.rljob.dev "{name[0]}" not found')
        if method == "PATCH":
            assert body is not None
            if body["metadata"]["uid"] != job["metadata"]["uid"]:
                return 422, _status(422, f'RLJob.rljob.dev "{name[0]}" is invalid: metadata.uid: field is immutable')
            job["metadata"].setdefault("annotations", {}).update(body["metadata"]["annotations"])
        return 200, job

    def _created(self, method: str, name: str) -> dict[str, Any]:
        if method == "DELETE":
            return self.created.pop(name)
        state = self.pod_states.pop(0) if len(self.pod_states) > 1 else self.pod_states[0]
        return self.created[name] | {"status": state}

    def _core(self, parts: list[str], query: dict[str, str]) -> tuple[int, Any]:
        _, kind, *rest = parts
        if kind == "events":
            wanted = dict(term.split("=", 1) for term in query["fieldSelector"].split(","))
            return 200, {
                "items": [e for e in self.events if e["involvedObject"]["uid"] == wanted["involvedObject.uid"]]
            }
        if rest:
            if "previous" in query and rest[0] + " previous" not in self.logs:
                return 400, _status(400, f'previous terminated container "trainer" in pod "{rest[0]}" not found')
            return 200, self.logs[rest[0] + (" previous" if "previous" in query else "")]
        role = dict(term.split("=", 1) for term in query["labelSelector"].split(","))[names.LABEL_ROLE]
        return 200, {"items": [{"metadata": {"name": p}} for p, r in self.pod_roles.items() if r == role]}


class Handler(BaseHTTPRequestHandler):
    api: FakeApi

    def do_GET(self) -> None:
        self._serve(None)

    def do_PATCH(self) -> None:
        assert self.headers["Content-Type"] == "application/merge-patch+json"
        self._serve(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def do_POST(self) -> None:
        assert self.headers["Content-Type"] == "application/json"
        self._serve(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def do_DELETE(self) -> None:
        self._serve(None)

    def _serve(self, body: dict[str, Any] | None) -> None:
        url = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        self.api.users.append(self.headers["Impersonate-User"])
        code, answer = self.api.answer(self.command, url.path, query, body)
        data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""


def serving(api: FakeApi) -> AbstractContextManager[str]:
    """Its address."""
    return answering(type("BoundHandler", (Handler,), {"api": api}))


def _status(code: int, message: str) -> dict[str, Any]:
    return {"kind": "Status", "status": "Failure", "code": code, "message": message}
