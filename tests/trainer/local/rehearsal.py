"""Jobs in a directory that `try` looks at, and what it shows."""

import io
import json
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.normalizers import Normalizer
from tokenizers.pre_tokenizers import Split
from transformers import PreTrainedTokenizerFast

from api.specs import raw_spec
from rljob_trainer.local.rehearsal.command import rehearse
from trainer.data.templates import QWEN, tokenizer

SUM = {"data_source": "sum", "answer": "5", "prompt": "2+3="}
ROWS = [SUM, SUM | {"prompt": "4+3=", "answer": "7"}]
AGENT = """
from rljob_trainer.agents import Policy, Prompt, Trajectory

async def rollout(prompt: Prompt, policy: Policy, row: dict):
    turn = await policy.generate(prompt.tokens)
    seen = turn.whole + await policy.encode(" and then? ")
    turn = await policy.generate(seen)
    {last}
"""
TOOLS = '''
def add(a: int, b: int) -> int:
    """The sum."""
    return a + b
'''


class Shown(NamedTuple):
    code: int
    out: str
    err: str


class Trial:
    """A job in a directory that is its volume."""

    def __init__(
        self,
        directory: Path,
        rows: Sequence[dict[str, Any]] = ROWS,
        template: str | None = QWEN,
        **changes: Any,
    ):
        """`template`: None for a model without one, whose texts are meant as they are."""
        self.directory = directory
        tokenizer(template, "<|im_end|>").save_pretrained(directory / "model")
        (directory / "model" / "config.json").write_text(json.dumps({"model_type": "qwen2", "vocab_size": 2000}))
        (directory / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        data = {"train": ["/data/train.jsonl"], "maxPromptTokens": 64} | changes.pop("data", {})
        if changes.get("task"):
            del data["maxPromptTokens"]
        volumes = [{"name": "data", "mountPath": "/data", "source": {"persistentVolumeClaim": {"claimName": "data"}}}]
        head = {"apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": "trial"}}
        spec = raw_spec(data=data, volumes=volumes, **changes)
        (directory / "job.yaml").write_text(yaml.safe_dump(head | {"spec": spec}))

    def write(self, name: str, code: str) -> str:
        """A file of the user's, as the spec names it."""
        (self.directory / name).write_text(code)
        return f"/data/{name}"

    def run(self, *said: str, colour: bool = False, everything: bool = False) -> Shown:
        """`said`: turns of a policy that is right."""
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            mounts = [f"/data={self.directory}"]
            code = rehearse(self.directory / "job.yaml", mounts, (), 2, said, everything=everything, colour=colour)
        return Shown(code, out.getvalue(), err.getvalue())


def reward_job(directory: Path, code: str, **changes: Any) -> Trial:
    trial = Trial(directory, rewards=[{"python": {"path": "/data/reward.py"}}], **changes)
    trial.write("reward.py", code)
    return trial


def agent_job(directory: Path, last: str, **changes: Any) -> Trial:
    agent = {"python": {"path": "/data/agent.py"}, "maxTurns": 2, "maxTokens": 60}
    trial = Trial(directory, rollout={"agent": agent, "sampling": {"maxTokens": 20}}, **changes)
    trial.write("agent.py", AGENT.format(last=last))
    return trial


def custom(trial: Trial, code: str) -> Trial:
    """With rows that the user's function makes."""
    job = yaml.safe_load((trial.directory / "job.yaml").read_text())
    job["spec"]["data"]["custom"] = {"path": trial.write("custom.py", code)}
    (trial.directory / "job.yaml").write_text(yaml.safe_dump(job))
    return trial


def digits_only(directory: Path, more: str = "", normalizer: Normalizer | None = None) -> PreTrainedTokenizerFast:
    """The model's tokenizer knows digits, `+`, `=` and `more`, and nothing that stands for the unknown."""
    alphabet = Tokenizer(WordLevel({character: i for i, character in enumerate("<0123456789+=" + more)}))
    alphabet.pre_tokenizer = Split(Regex("."), "isolated")
    if normalizer:
        alphabet.normalizer = normalizer
    PreTrainedTokenizerFast(tokenizer_object=alphabet, eos_token="<").save_pretrained(directory / "model")
    loaded: PreTrainedTokenizerFast = PreTrainedTokenizerFast.from_pretrained(directory / "model")
    return loaded
