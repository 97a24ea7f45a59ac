"""What a server of a service refuses before vLLM sees it."""

from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.routing import Route
from starlette.testclient import TestClient

from rljob_trainer.server.sample import sample
from rljob_trainer.wire.rollout_server import Adapter, SampleRequest


@pytest.mark.parametrize("files", [(), ("adapter_config.json",), ("adapter_model.safetensors", ".metadata")])
def test_a_directory_without_adapters_is_refused_before_the_engine_reads_it(
    tmp_path: Path, files: tuple[str, ...]
) -> None:
    for name in files:
        (tmp_path / name).touch()
    adapter = Adapter("a", str(tmp_path))
    body = SampleRequest(tokens=[1], n=1, seed=0, max_tokens=1, adapter=adapter).body()
    app = Starlette(routes=[Route("/", sample, methods=["POST"])])
    app.state.engine_client = None  # nothing of it may be used
    found = TestClient(app).post("/", json=body)
    assert found.status_code == 400 and f"the snapshot {tmp_path} has no adapter_" in found.text
