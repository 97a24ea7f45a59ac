"""Adapters that clients download."""

from pathlib import Path
from typing import Any

import pytest
from yarl import URL

from rljob_trainer.gateway.wire.downloads import LINK_SECONDS
from trainer.gateway.test_expiry import save
from trainer.gateway.test_routes import Desk, opened

FILES = {"adapter_config.json": b"{}", "adapter_model.safetensors": bytes(range(256)) * 1000}


async def saved(desk: Desk) -> str:
    """Its path, without the scheme; and the files that ranks would have written."""
    path = await save(desk, "save_weights_external", 1, "mine")
    directory = Path(desk.service.files.path(desk.service.named("anybody", f"tinker://{path}").directory))
    for name, content in FILES.items():
        (directory / name).write_bytes(content)
    return path


async def links(desk: Desk, path: str, client: str = "anybody", status: int = 200) -> dict[str, Any]:
    run, part, name = path.split("/")
    answer = await desk.listed(f"training_runs/{run}/checkpoints/{part}/{name}/external_weights_urls", client, status)
    return answer.get("urls", {})


async def test_files_are_downloaded_over_links_without_a_key(tmp_path: Path) -> None:
    (keys := tmp_path / "keys").mkdir()
    (keys / "anybody").write_text("tml-anybody")
    (keys / "bob").write_text("tml-bob")
    async with opened(tmp_path / "service", keys) as desk:
        path = await saved(desk)
        found = await links(desk, path)
        assert {name: await (await desk.follow(url)).read() for name, url in found.items()} == FILES
        await links(desk, path, "bob", 404)
        (listed,) = (await desk.listed("checkpoints"))["checkpoints"]
        assert (listed["checkpoint_type"], listed["tinker_path"]) == ("external", f"tinker://{path}")


async def test_a_link_that_is_changed_old_or_of_another_gateway_leads_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path) as desk:
        path = await saved(desk)
        url = URL((await links(desk, path))["adapter_config.json"])
        other = url.with_path(url.path.replace("adapter_config.json", "adapter_model.safetensors"))
        for wrong in (
            other,
            url.update_query(expires="9999999999"),
            url.with_query({}),
            url.update_query(signature="é"),
        ):
            answer = await desk.follow(wrong)
            assert answer.status == 403 and "ask for a new one" in await answer.text()
        with monkeypatch.context() as patched:
            now = 1e9 + LINK_SECONDS + float(url.query["expires"])
            patched.setattr("rljob_trainer.gateway.wire.downloads.time.time", lambda: now)
            assert "has expired" in await (await desk.follow(url)).text()
        assert (await desk.delete(f"training_runs/{desk.model}/checkpoints/external_weights/mine")).status == 200
        assert (await desk.follow(url)).status == 404
    async with opened(tmp_path) as desk:
        assert (await desk.follow(url)).status == 403


async def test_links_lead_where_the_client_has_reached_the_gateway(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        path = await saved(desk)
        headers = {"Host": "train.example.com", "X-Forwarded-Proto": "https"}
        run, part, name = path.split("/")
        answer = await desk.get(f"training_runs/{run}/checkpoints/{part}/{name}/external_weights_urls", headers)
        (url, _) = (await answer.json())["urls"].values()
        assert url.startswith(
            f"https://train.example.com/api/v1/external_weights/{run}/mine/adapter_config.json?expires="
        )


async def test_adapters_to_download_are_not_encrypted_and_not_sampled_from(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        path = await saved(desk)
        assert (await desk.sampler(0, f"tinker://{path}")).status == 400
        await save(desk, "save_weights_external", 2, "secret", age_encryption_recipients=["age1x"])
        found = await (await desk.post("retrieve_future", request_id=f"{desk.model}:2")).json()
        assert found["error"].startswith("age_encryption_recipients: ")
