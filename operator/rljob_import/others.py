"""Configurations of systems that are not read: how they are recognized, and from which pages such a job is written by hand."""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from rljob_import import SYSTEMS


@dataclass(frozen=True)
class Other:
    """A system by what is in its scripts and files."""

    title: str
    pages: str
    program: str = ""
    """Regular expression of a word that runs it."""
    flags: frozenset[str] = frozenset()
    """All of them stand in one command."""
    sections: frozenset[str] = frozenset()
    """All of them are at the top of its YAML."""


GRPO, PARALLEL = "docs/algorithms.md", "docs/algorithms.md and docs/parallelism.md"
OTHERS = {
    "trl": Other("TRL", f"docs/sft.md, docs/dpo.md or docs/reward-model.md, and for GRPO {GRPO}", r"trl(\.\S+)?"),
    "slime": Other(
        "slime", PARALLEL, r"slime(\.\S+)?", frozenset({"--hf-checkpoint", "--rollout-batch-size", "--num-rollout"})
    ),
    "nemo": Other("NeMo-RL", PARALLEL, r"nemo_rl(\.\S+)?", sections=frozenset({"policy", "cluster"})),
    "openrlhf": Other("OpenRLHF", "docs/algorithms.md and docs/pools.md", r"openrlhf(\.\S+)?"),
    "skyrl": Other("SkyRL", "docs/algorithms.md and docs/agents.md", r"skyrl_train(\.\S+)?"),
    "axolotl": Other(
        "axolotl", "docs/sft.md and docs/dpo.md", "axolotl", sections=frozenset({"base_model", "datasets"})
    ),
    "swift": Other("ms-swift", "docs/sft.md, docs/dpo.md and docs/algorithms.md", r"swift(\.\S+)?"),
    "areal": Other("AReaL", "docs/algorithms.md and docs/asynchronous.md", r"areal(\.\S+)?"),
    "prime": Other("prime-rl", "docs/algorithms.md and docs/asynchronous.md", r"prime_rl(\.\S+)?"),
}
"""By the beginning of the name under which somebody asks for it."""
LLAMA_FACTORY = re.compile(r"(?:\S*/)?llamafactory(-cli|\.\S+)?")
READ = f"import reads {', '.join(SYSTEMS)}"


def running(commands: Iterable[Collection[str]]) -> str:
    """What the commands of a script run, as the end of a refusal; empty: nothing that is known."""
    for words in commands:
        plain = [word for word in words if not word.startswith("-")]
        for other in OTHERS.values():
            found = next((word for word in plain if re.fullmatch(rf"(\S*/)?({other.program})", word)), "")
            if not found and other.flags and other.flags <= {word.partition("=")[0] for word in words}:
                found = f"{other.title}'s trainer"
            if found:
                return f"runs {found}, which is no trainer of verl's: {READ}; write the job by {other.pages}"
        if found := next(filter(LLAMA_FACTORY.fullmatch, plain), ""):
            return f"runs {found}, which is no trainer of verl's: {READ}"
    return ""


def holding(sections: Collection[str]) -> str:
    """Whose YAML has these sections at its top, as a refusal; empty: nobody's that is known."""
    for other in OTHERS.values():
        if other.sections and other.sections <= set(sections):
            return f"is a configuration of {other.title}: {READ}; write the job by {other.pages}"
    return ""
