"""How verl's configurations are written: scripts of Hydra overrides, or YAML."""

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from rljob_import.others import holding, running
from rljob_import.readers.hydra import (
    CommandLine,
    UnreadableFile,
    command_line,
    document,
    flatten,
    launch,
    plain,
    resolve,
    scalar,
    tree_of,
)
from rljob_import.readers.shell import Shell
from rljob_import.readers.words import Variables
from rljob_import.settings import Configuration, Settings, System
from rljob_import.shared.adapters import verl_has_adapters
from rljob_import.shared.bases import CONFIG_NAME
from rljob_import.shared.values import VERL
from rljob_import.systems.verl import algorithm, roles
from rljob_import.systems.verl.engine import bases
from rljob_import.systems.verl.roles_rows import PPO_ROWS
from rljob_import.systems.verl.rows import MODEL, REF
from rljob_import.systems.verl.sft import FSDP_SFT, SFT, template_arguments
from rljob_import.table import Note, Outcome


def unread(settings: Settings) -> dict[str, str]:
    """Roles that verl configures whether there are any or not."""
    why = {}
    if not algorithm.is_gae(settings):
        why["critic"] = "only advantage gae has a critic"
    if not algorithm.has_reference(settings):
        why["reference"] = "without a KL penalty no reference is held"
    elif verl_has_adapters(settings, MODEL) and not settings[f"{REF}model.path"]:
        why["reference.offload"] = "the reference is the policy without its adapters"
    if not settings["data.val_files"]:
        why["evaluation"] = "there are no held-out prompts"
    return why


NO_TRAINING = ("main_generation", "main_eval")
"""What verl's modules are named that train nothing."""
VERLS = {"actor_rollout_ref", "algorithm", "critic", "reward_model"}
"""Sections of verl's reinforcement learning, of which its files have one."""
PPO = System("verl", PPO_ROWS, (bases, *roles.RULES, template_arguments, *algorithm.RULES), VERL, unread)


def read(text: str, environment: Mapping[str, str]) -> Configuration:
    """A script or a YAML file. Raises Unreadable."""
    if _is_yaml(text):
        return _of_yaml(text, environment)
    return _of_script(text, environment)


def _is_yaml(text: str) -> bool:
    if text.startswith("#!"):
        return False
    try:
        return isinstance(document(text), dict)
    except UnreadableFile as error:
        if isinstance(error.__cause__, yaml.YAMLError):
            return False
        raise


def _of_yaml(text: str, environment: Mapping[str, str]) -> Configuration:
    tree = tree_of(text)
    if isinstance(tree.get("run"), str):  # a task of SkyPilot, whose script is text
        return _of_script(tree["run"], environment)
    other = "" if VERLS & tree.keys() else holding(tree.keys())
    if other:
        raise UnreadableFile(other)
    tree, lost = resolve(tree, environment)
    values = {k: plain(v) for k, v in flatten(tree).items() if k.rpartition(".")[2] != "_target_"}
    system = PPO if VERLS & tree.keys() else _sft("", values)
    return Configuration(system, values, [Note(Outcome.CHANGED, path, "is left out") for path in lost])


def _of_script(text: str, environment: Mapping[str, str]) -> Configuration:
    variables = Variables({"HOME": ["~"], "@": [], "#": ["0"]} | {k: [v] for k, v in environment.items()})
    shell = Shell(variables).run(text)
    line = command_line(launch(shell.commands))
    if not line.values:
        raise UnreadableFile(_without_overrides(text, shell))
    if any(purpose in line.module for purpose in NO_TRAINING):
        raise UnreadableFile(f"runs {line.module}, which trains nothing: for held-out prompts see evaluation.only")
    of_ppo = any(key.startswith(("actor_rollout_ref.", "algorithm.")) for key in line.values)
    sft = "sft" in line.module if line.module else not of_ppo
    values = {k: v for key, value in line.values.items() for k, v in _leaves(key, value).items()}
    values |= {f"export.{name}": variables.text(name) for name in shell.exported if variables.text(name)}
    if line.flags.get("config_name"):
        values[CONFIG_NAME] = line.flags["config_name"]
    if sft:
        flags = ("nnodes", "nproc_per_node")
        values |= {f"launcher.{f}": scalar(line.flags[f]) for f in flags if line.flags.get(f)}
    return Configuration(_sft(line.module, values) if sft else PPO, values, [*_told(shell), *_empty(line)])


def _empty(line: CommandLine) -> Iterator[Note]:
    """Overrides that a variable without a value left empty: verl would end, and here the default counts."""
    for key in dict.fromkeys(line.empty):
        if line.values.get(key) is None:
            text = "nothing stands behind the `=`, so that its default counts: give its variable a value with --env"
            yield Note(Outcome.CHANGED, f"{key} =", text, (key,))


def _sft(module: str, values: Mapping[str, Any]) -> System:
    """Of the two trainers of conversations the one that runs, by its module, else by a key that the newer one has not."""
    return FSDP_SFT if "fsdp_sft" in module or "model.partial_pretrain" in values else SFT


def _without_overrides(text: str, shell: Shell) -> str:
    """What was read in vain: loops that were passed over, and why it is no YAML."""
    if other := running(shell.commands):
        return other
    passed = "".join(f"; {loop} {what}" for loop, what in shell.remarks.items() if "passed over" in what)
    try:
        why = f"as YAML it is {'a list' if isinstance(document(text), list) else 'a text'}"
    except UnreadableFile as error:
        why = f"it {' '.join(str(error).split())}"
    return f"holds no command with overrides like `trainer.nnodes=1`{passed}; {why}"


def _leaves(key: str, value: Any) -> dict[str, Any]:
    return flatten({key: value}) if isinstance(value, dict) else {key: value}


def _told(shell: Shell) -> list[Note]:
    """What a script leaves open, since nothing of it is executed."""
    unset = [name for name in shell.variables.unset if name not in shell.exported]
    return [
        *(
            Note(Outcome.CHANGED, f"${name}", f"is set outside of the script: empty, or --env {name}=VALUE")
            for name in unset
        ),
        *(Note(Outcome.CHANGED, f"$({c})", "no command is run: its output is taken for empty") for c in shell.probed),
        *(Note(Outcome.CHANGED, loop, what) for loop, what in shell.remarks.items()),
    ]
