"""Which tokens end a sequence: those that training teaches, and those at which a server stops."""

import json
from pathlib import Path
from typing import Any, cast

from rljob_api.families import language_of
from rljob_api.spec import RLJobSpec
from rljob_trainer.data.conversations import spoken
from rljob_trainer.data.tokenizer import OffsetTokenizer, Tokenizer

SAID = "rljob-probe"
TEACHING = ("sft", "dpo")
"""Tasks whose examples end with the end of a turn, so that the model learns to write it."""


def turn_end(spec: RLJobSpec, tokenizer: Tokenizer) -> tuple[str, int] | None:
    """The token with which the chat template ends the assistant's turn. None: there is no template, or it writes none there."""
    fast = cast(OffsetTokenizer, tokenizer)
    if not tokenizer.chat_template:
        return None
    how = {"add_generation_prompt": False, "tokenize": False, **spec.data.chat_template.arguments}
    try:
        text = tokenizer.apply_chat_template([spoken("user", SAID), spoken("assistant", SAID)], **how)
    except (
        Exception
    ):  # a template is a program; that it refuses such a conversation is said by the rows that it refuses
        return None
    rest = text.rpartition(SAID)[2].lstrip()
    known = {word: number for word, number in fast.get_added_vocab().items() if word and rest.startswith(word)}
    word = max(known, key=len, default=None)
    return (word, known[word]) if word else None


def stops(directory: Path) -> tuple[str, list[int]]:
    """File and ids of the tokens at which a server of the model in `directory` stops."""
    for name in ("generation_config.json", "config.json"):
        ids = language_of(_read(directory / name)).get("eos_token_id")
        if ids is not None:
            return name, [int(i) for i in (ids if isinstance(ids, list) else [ids])]
    return "config.json", []


def unheard_end(spec: RLJobSpec, tokenizer: Tokenizer) -> str:
    """What to say where the chat template ends turns with a token at which servers of the model do not stop; empty: nothing."""
    found, (file, ids) = turn_end(spec, tokenizer), stops(Path(spec.model.path))
    if not found or not ids or found[1] in ids:
        return ""
    shown = ", ".join(map(str, ids))
    text = f"the chat template ends a turn with {found[0]!r} (id {found[1]}), which is no end of sequence in {file} of spec.model.path ({shown})"
    if spec.task in TEACHING:
        return f"{text}; exports get it as a further eos_token_id, so that servers stop after a turn"
    return f"{text}: rollouts and servers do not stop after a turn; add {found[1]} to its eos_token_id"


def write_ends(spec: RLJobSpec, tokenizer: Tokenizer, directory: Path) -> None:
    """Add to an exported model's generation_config.json, and to config.json where it has one, the end of a turn that training has taught."""
    found, (_, ids) = turn_end(spec, tokenizer), stops(directory)
    if spec.task not in TEACHING or not found or found[1] in ids:
        return
    for name in ("generation_config.json", "config.json"):
        held = _read(directory / name)
        if name == "generation_config.json" or "eos_token_id" in held:
            held["eos_token_id"] = [found[1], *ids]
            (directory / name).write_text(json.dumps(held, indent=2) + "\n")


def _read(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text()) if file.is_file() else {}
