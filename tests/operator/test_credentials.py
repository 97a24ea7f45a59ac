"""Credentials are read again while the operator runs; what was read last stays in force."""

from contextlib import suppress
from pathlib import Path

import kopf
import pytest
import yaml
from aiohttp import web

from certificates import certified
from e2e.control_plane import kubeconfig
from rljob_operator.kube import credentials
from rljob_operator.kube.api import ApiError
from rljob_operator.kube.client import KubernetesApi, RateLimiter
from rljob_operator.kube.credentials import Credentials, login


def write(path: Path, token: str) -> None:
    config = kubeconfig("https://127.0.0.1:6443")
    config["users"][0]["user"]["token"] = token
    path.write_text(yaml.safe_dump(config))


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    write(tmp_path / "config", "first")
    return tmp_path / "config"


@pytest.mark.parametrize(
    ("host", "server"), [("10.96.0.1", "https://10.96.0.1:443"), ("fd00::1", "https://[fd00::1]:443")]
)
def test_a_pod_reaches_the_api_server_without_dns(monkeypatch: pytest.MonkeyPatch, host: str, server: str) -> None:
    account = kopf.ConnectionInfo(server="https://kubernetes.default.svc", token="t")
    monkeypatch.setattr(kopf, "login_with_service_account", lambda settings: account)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    found = Credentials()
    assert (found.server, found.headers()) == (server, {"Authorization": "Bearer t"})


def test_a_token_is_read_again_when_it_was_refused_and_when_it_is_old(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Credentials()
    write(config, "second")
    assert found.headers() == {"Authorization": "Bearer first"}
    found.renew()
    assert found.headers() == {"Authorization": "Bearer second"}
    write(config, "third")
    monkeypatch.setattr(credentials, "LIFETIME", 0.0)
    found.renew()
    write(config, "fourth")
    assert found.headers() == {"Authorization": "Bearer fourth"}


def test_credentials_that_cannot_be_read_again_stay_as_they_were(
    config: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = Credentials()
    config.unlink()
    found.renew()
    assert found.headers() == {"Authorization": "Bearer first"}
    assert "credentials cannot be read again" in caplog.text


def test_an_operator_without_credentials_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(kopf.LoginError, match="neither a service account nor a kubeconfig"):
        login()


async def test_an_api_server_with_another_authority_is_accepted_once_that_is_known(tmp_path: Path) -> None:
    """By sessions that are open: without, an operator waits for its lease until somebody starts it again."""

    async def node(_: web.Request) -> web.Response:
        return web.json_response({"metadata": {"name": "n1"}}, headers={"Connection": "close"})

    app = web.Application()
    app.router.add_get("/api/v1/nodes/n1", node)
    runner = web.AppRunner(app)
    await runner.setup()
    (old, old_file), (new, new_file) = certified(tmp_path, "old"), certified(tmp_path, "new")
    known = tmp_path / "ca.crt"
    known.write_bytes(old_file.read_bytes())
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=old)
    await site.start()
    port = runner.addresses[0][1]
    info = kopf.ConnectionInfo(server=f"https://127.0.0.1:{port}", ca_path=str(known), token="t")
    api = KubernetesApi(Credentials(lambda: info), RateLimiter(qps=100, burst=100), 1)
    assert await api.get("Node", None, "n1")
    await site.stop()
    await web.TCPSite(runner, "127.0.0.1", port, ssl_context=new).start()
    with pytest.raises(ApiError, match="Certificate"):
        await api.get("Node", None, "n1")
    known.write_bytes(new_file.read_bytes())
    with suppress(ApiError):
        await api.get("Node", None, "n1")
    assert await api.get("Node", None, "n1")
    await api.close()
    await runner.cleanup()
