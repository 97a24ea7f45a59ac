"""What a page of `plan` says in words."""

from pathlib import Path

import pytest
import yaml

from cli.makers import make_spec
from kubectl_rljob.__main__ import main
from rljob_api import names


def test_a_sample_of_an_agent_is_its_prompt_and_all_its_turns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    agent = {"python": {"path": "/data/agent.py"}, "maxTurns": 2, "maxTokens": 16}
    spec = make_spec(
        data={"train": ["/data/train.parquet"], "maxPromptTokens": 4},
        rollout={"agent": agent, "sampling": {"maxTokens": 8}},
    )
    job = {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": {"name": "demo"}, "spec": spec}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    assert main(["plan", "-f", str(tmp_path / "job.yaml"), "--offline"]) == 0
    assert "at most 4 of the prompt + 16 of the turns = 20 per sample" in capsys.readouterr().out
