"""`-o json` and `-o yaml`: the data, with control characters escaped, so that nothing is lost and no terminal interprets them.
And samples of a step, with who wrote what."""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from kubectl_rljob.terminal import CONTROL


def _escaped(control: re.Match[str]) -> str:
    return json.dumps(control[0])[1:-1]


def render(value: Any, output: str) -> str:
    text = json.dumps(value, indent=4, ensure_ascii=False)
    if output == "json":
        return CONTROL.sub(_escaped, text)
    readable = CONTROL.search(text) is None
    dumped = yaml.safe_dump(value, sort_keys=False, allow_unicode=readable, width=160)
    return dumped.removesuffix("\n")  # a text at the end may end with white space of Unicode, without quotes


def without_managed_fields(item: dict[str, Any]) -> dict[str, Any]:
    """As kubectl prints an object."""
    return {**item, "metadata": {k: v for k, v in item["metadata"].items() if k != "managedFields"}}


WIDTH = 13
"""Of the column that says who wrote a text."""


def samples_page(step: int, samples: Iterable[Mapping[str, Any]]) -> str:
    """Each sample below a line about it, each text behind its author: the policy with the step of its weights."""
    return "\n\n".join([f"STEP {step}", *map(_sample, samples)])


def _sample(sample: Mapping[str, Any]) -> str:
    facts = [f"prompt {sample['prompt_index']}", f"sample {sample['sample']}"]
    facts += [f"branch {sample['branch']}"] if "branch" in sample else []
    facts += [f"reward {sample['reward']:g}"]
    facts += [f"answers {sample['prediction']}"] if "prediction" in sample else []
    facts += [f"{name} {value:g}" for name, value in sample.get("metrics", {}).items()]
    facts += ["cut off"] if sample["truncated"] else []
    return "\n".join([", ".join(facts), *map(_segment, sample["segments"])])


def _segment(segment: Mapping[str, Any]) -> str:
    """Lines of the text under each other."""
    author = f"policy {segment['policy_step']}" if segment["source"] == "policy" else segment["source"]
    first, *rest = str(segment["text"]).split("\n")
    return "\n".join([f"  {author:<{WIDTH}}{first}", *(" " * (WIDTH + 2) + line for line in rest)])
