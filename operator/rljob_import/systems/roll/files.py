"""How ROLL's configurations are written, and which of its pipelines one is of."""

import re
from collections.abc import Mapping
from typing import Any

from rljob_import.readers.hydra import UnreadableFile, flatten, plain, resolve, tree_of
from rljob_import.settings import Configuration, Settings, System
from rljob_import.shared import places
from rljob_import.shared.bases import foreign_bases
from rljob_import.shared.values import ROLL
from rljob_import.systems.roll.rl import (
    algorithm,
    asynchrony,
    distillation,
    distribution,
    offload,
    prompts,
    rewards,
    rollouts,
)
from rljob_import.systems.roll.rl_rows import RL_ROWS
from rljob_import.systems.roll.rows import DPO_ROWS, SFT_ROWS
from rljob_import.systems.roll.run import (
    amounts,
    environment,
    has_critic,
    layout,
    other_roles,
    sources,
    supervised,
    tuning,
    weights,
)
from rljob_import.table import Note, Outcome

bases = foreign_bases(re.compile(r"(.*/)?config/(envs|deepspeed_\w+)@_here_"))
"""Of ROLL's own, those of environment variables and of DeepSpeed."""
SFT = System(
    "ROLL, SFT", SFT_ROWS, (bases, sources, tuning, weights, layout, supervised, environment, places.pods), ROLL
)
DPO = System(
    "ROLL, DPO",
    DPO_ROWS,
    (bases, sources, tuning, weights, layout, other_roles, supervised, environment, places.pods),
    ROLL,
)
TEACHER_FIRST = ": write algorithm.distillation with the teacher as a pool (docs/algorithms.md#distillation)"
READ = "RLVR, on-policy distillation, SFT and DPO are read"
"""The pipelines, as the end of a refusal."""
ROLES = {"student_train": "actor_train", "student_infer": "actor_infer", "teacher": "reference"}
"""Of on-policy distillation, and what ROLL makes of them itself (BaseConfig)."""


def unread(settings: Settings) -> dict[str, str]:
    why = {} if has_critic(settings) else {"critic": "only advantage gae has a critic"}
    if not settings["validation.data_args.file_name"]:
        why["evaluation"] = "there are no held-out prompts"
    return why


def read(text: str, variables: Mapping[str, str]) -> Configuration:
    """YAML of Hydra. Raises Unreadable, also of a pipeline that is not read."""
    tree, lost = resolve(tree_of(text), variables)
    for key in ("custom_envs", "train_env_manager"):
        if key in tree:
            raise UnreadableFile(
                f"is of the agentic pipeline (`{key}`), whose environments are classes of ROLL: write them as an agent or a service "
                f"for rollout.agent (docs/agents.md). {READ}"
            )
    for key, more in (("student", TEACHER_FIRST), ("reward", "")):
        if key in tree:
            raise UnreadableFile(f"is of a pipeline that is not read (`{key}`{more}). {READ}")
    tree, renamed = _with_teacher(tree)
    if "pretrain" not in tree and not any(key.startswith(("actor_", "sft_")) for key in tree):
        raise UnreadableFile(
            "says neither `pretrain` nor `actor_train`: it is a part that others name in their `defaults`"
        )
    system = SFT if "sft_train" in tree else DPO if "chosen_key" in tree or "beta" in tree else RL
    values = {k: plain(v) for k, v in flatten(tree).items()}
    return Configuration(system, values, [*renamed, *(Note(Outcome.CHANGED, path, "is left out") for path in lost)])


def _with_teacher(tree: Mapping[str, Any]) -> tuple[dict[str, Any], list[Note]]:
    """A configuration of on-policy distillation by the names of RLVR's roles. Raises Unreadable for several teachers."""
    teachers = tree.get("teacher")
    if isinstance(teachers, Mapping) and any(isinstance(t, Mapping) and "model_args" in t for t in teachers.values()):
        raise UnreadableFile("has several teachers; a job has one: give the rows of the others jobs of their own")
    text = "is {} in ROLL, too, by which its keys are named here"
    notes = [Note(Outcome.IMPLIED, role, text.format(ours)) for role, ours in ROLES.items() if role in tree]
    renamed = {ROLES.get(key, key): value for key, value in tree.items()}
    return renamed | ({"is_pure_opd": True} if "student_train" in tree else {}), notes


RL = System(
    "ROLL, RLVR",
    RL_ROWS,
    (
        bases,
        sources,
        tuning,
        weights,
        prompts,
        layout,
        other_roles,
        amounts,
        rewards,
        distribution,
        rollouts,
        offload,
        asynchrony,
        algorithm,
        distillation,
        environment,
        places.pods,
    ),
    ROLL,
    unread,
)
