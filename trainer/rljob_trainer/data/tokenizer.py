"""The model's own tokenizer, used on the driver's side only: ranks and rollouts see token ids. And which tokens end a sequence: those that
training teaches, and those at which a server stops.
"""

import difflib
import inspect
import json
import re
import shutil
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from rljob_api.families import language_of
from rljob_api.spec import RLJobSpec
from rljob_trainer.data.conversations import spoken
from rljob_trainer.data.files import Place
from rljob_trainer.failure import ConfigurationError, is_outage
from rljob_trainer.model_files import model_config

SAID = "rljob-probe"
SLIP = 0.85
"""How alike (difflib's ratio) two names are of which one is a slip of the other: enable_thinkng, but not thinking for enable_thinking."""
TEACHING = ("sft", "dpo")
"""Tasks whose examples end with the end of a turn, so that the model learns to write it."""


OF_THE_LIBRARY = ["transformers.tokenization_utils_base", "transformers.tokenization_utils_tokenizers"]
"""Modules of `decode` and `_decode`, where a tokenizer has none of its own."""


class Tokenizer(Protocol):
    """What we ask of it."""

    chat_template: Any
    """None or empty: it has none."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...

    def __hash__(self) -> int: ...

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str: ...

    def get_vocab(self) -> dict[str, int]: ...

    def apply_chat_template(
        self, conversation: Any, tools: Any = None, *, add_generation_prompt: bool, tokenize: bool, **arguments: Any
    ) -> str: ...


def decoded(tokenizer: Tokenizer, token_ids: list[int]) -> str:
    """The text without special tokens. Other threads run meanwhile, where nothing but the tokenizers library makes it: of its methods, only those for
    batches let go of the interpreter."""
    made_by = [getattr(getattr(type(tokenizer), name, None), "__module__", "") for name in ("decode", "_decode")]
    if made_by != OF_THE_LIBRARY or tokenizer.clean_up_tokenization_spaces:  # type: ignore[attr-defined]
        return tokenizer.decode(token_ids, skip_special_tokens=True)
    texts: list[str] = tokenizer.backend_tokenizer.decode_batch([token_ids], skip_special_tokens=True)  # type: ignore[attr-defined]
    return texts[0]


class ToolTokenizer:
    """A tokenizer whose chat template shows functions that may be called."""

    def __init__(self, tokenizer: Tokenizer, tools: Sequence[Mapping[str, Any]]):
        """`tools`: their JSON schemas."""
        self._tokenizer, self._tools = tokenizer, list(tools)
        self.chat_template = tokenizer.chat_template

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=add_special_tokens)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def get_vocab(self) -> dict[str, int]:
        return self._tokenizer.get_vocab()

    def apply_chat_template(
        self, conversation: Any, tools: Any = None, *, add_generation_prompt: bool, tokenize: bool, **arguments: Any
    ) -> str:
        how = {"add_generation_prompt": add_generation_prompt, "tokenize": tokenize}
        return self._tokenizer.apply_chat_template(conversation, tools or self._tools, **how, **arguments)


def text_tokens(tokenizer: Tokenizer, text: str) -> list[int]:
    """The text with the special tokens that the tokenizer puts in front, and without those that it puts behind (add_eos_token, [SEP]): whoever goes
    on writing would begin behind the end."""
    tokens, added = tokenizer.encode(text, add_special_tokens=True), _added(tokenizer)
    if not added or tokens[-1:] != added[-1:]:
        return tokens
    bare = tokenizer.encode(text, add_special_tokens=False)
    ends = (i + len(bare) for i in range(len(tokens) - len(bare) + 1) if tokens[i : i + len(bare)] == bare)
    return tokens[: next(ends, len(tokens))]


def unwritten(tokenizer: Tokenizer, text: str, tokens: Sequence[int]) -> str:
    """Characters of a text that its tokens do not write, each once: a tokenizer that has no token for what it does not know leaves it out without a
    word. Forms of a character (Unicode's NFKC, capitals) are one, and white space does not count: tokenizers have ways of their own with them."""
    written = _plain(tokenizer.decode(tokens, skip_special_tokens=False))
    return "".join(dict.fromkeys(c for c in _plain(text) if not c.isspace() and c not in written))


def _plain(text: str) -> str:
    return unicodedata.normalize("NFKC", text).casefold()


@lru_cache(maxsize=8)
def _added(tokenizer: Tokenizer) -> list[int]:
    """To a text of nothing."""
    return tokenizer.encode("", add_special_tokens=True)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The tokens that a model has rows for."""

    size: int
    path: str

    @staticmethod
    def of(spec: RLJobSpec) -> "Vocabulary | None":
        """That of spec.model.path; None where its config.json does not say."""
        size = language_of(model_config(spec.model.path)[0]).get("vocab_size")
        return Vocabulary(size, spec.model.path) if size else None

    def require(self, tokens: Sequence[int] | npt.NDArray[np.integer], place: Place, tokenizer: Tokenizer) -> None:
        """Raises ConfigurationError for a token that the model has no row for: an added one, without new rows for it."""
        largest = int(np.max(tokens, initial=0))
        if largest >= self.size:
            word = tokenizer.decode([largest], skip_special_tokens=False)
            rule = f"holds the token {word!r} with the id {largest}, and the model in {self.path} has vocab_size = {self.size}"
            last = max(tokenizer.get_vocab().values())
            fix = f"resize the model's embeddings (the tokenizer's largest id is {last}), or remove the token from the tokenizer"
            raise place.error(rule, fix)


class OffsetTokenizer(Tokenizer, Protocol):
    """What supervised data need besides: where in a text each token lies. Only tokenizers of the library tokenizers ("fast") know."""

    is_fast: bool
    eos_token: str | None
    eos_token_id: Any
    """None: it has none."""
    special_tokens_map: Mapping[str, str]

    def __call__(self, text: str, *, add_special_tokens: bool, return_offsets_mapping: bool) -> Mapping[str, Any]: ...

    def __len__(self) -> int: ...

    def get_added_vocab(self) -> Mapping[str, int]: ...

    def get_chat_template(self, *, tools: Any) -> str: ...


def load_tokenizer(spec: RLJobSpec) -> Tokenizer:
    """From the files of spec.model.path, never from a network, with the template of spec.data.chatTemplate. Raises ConfigurationError when there is
    none."""
    tokenizer = tokenizer_of("spec.model.path", spec.model.path, spec.model.trust_remote_code)
    path = spec.data.chat_template.path
    if path:
        tokenizer.chat_template = _template(path)
    _require_read(spec, tokenizer)
    return tokenizer


def _require_read(spec: RLJobSpec, tokenizer: Tokenizer) -> None:
    """Raises ConfigurationError for an argument whose name is a slip of one that the template reads: templates pass over it."""
    for name, meant in _unread(spec, tokenizer).items():
        if meant:
            rule, fix = (
                "the chat template reads no variable of this name",
                f"write {meant}, if that is meant, or remove it",
            )
            raise ConfigurationError("spec.data.chatTemplate.arguments", name, rule, fix)


def _unread(spec: RLJobSpec, tokenizer: Tokenizer) -> dict[str, str]:
    """Arguments that neither the template mentions nor the tokenizer takes, each with the name that it is a slip of; empty: none. vLLM's parsers of
    reasoning read arguments, too."""
    agent, template = spec.rollout.agent, str(tokenizer.chat_template or "")
    if not template or (agent and agent.reasoning_parser):
        return {}
    words = {*re.findall(r"\w+", template), *inspect.signature(tokenizer.apply_chat_template).parameters}
    unread = sorted(spec.data.chat_template.arguments.keys() - words)
    return {name: next(iter(difflib.get_close_matches(name, words, 1, SLIP)), "") for name in unread}


def unread_arguments(spec: RLJobSpec, tokenizer: Tokenizer) -> str:
    """What to say of arguments that change nothing; empty: there are none. One setting for several models may have them."""
    names = ", ".join(map(repr, _unread(spec, tokenizer)))
    return (
        f"spec.data.chatTemplate.arguments: the chat template reads no variable {names}: it changes nothing"
        if names
        else ""
    )


def template_warnings(spec: RLJobSpec, tokenizer: Tokenizer) -> list[str]:
    """What to say of the model's chat template before any row is read."""
    return [text for text in (unheard_end(spec, tokenizer), unread_arguments(spec, tokenizer)) if text]


def _template(path: str) -> str:
    try:
        return Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        if is_outage(error):
            raise
        fix = "correct the path, or mount the volume that holds the file in spec.volumes"
        raise ConfigurationError("spec.data.chatTemplate.path", path, f"cannot be read: {error}", fix) from error


def tokenizer_of(field: str, path: str, trust_remote_code: bool) -> Tokenizer:
    """That of a model's directory, which `field` of the spec names. Raises ConfigurationError when there is none."""
    from transformers import AutoTokenizer  # seconds to import: only who needs a tokenizer pays

    if not Path(path).is_dir():
        fix = "correct the path, or mount the volume that holds it in spec.volumes"
        raise ConfigurationError(field, path, "there is no such directory", fix)
    try:
        return AutoTokenizer.from_pretrained(path, trust_remote_code=trust_remote_code, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        fix = "put the tokenizer's files next to config.json, or correct the path"
        raise ConfigurationError(field, path, f"no tokenizer can be loaded from it: {error}", fix) from error


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
    end, (file, ids) = turn_end(spec, tokenizer), stops(Path(spec.model.path))
    if not end or not ids or end[1] in ids:
        return ""
    shown = ", ".join(map(str, ids))
    text = f"the chat template ends a turn with {end[0]!r} (id {end[1]}), which is no end of sequence in {file} of spec.model.path ({shown})"
    if spec.task in TEACHING:
        return f"{text}; exports get it as a further eos_token_id, so that servers stop after a turn"
    return f"{text}: rollouts and servers do not stop after a turn; add {end[1]} to its eos_token_id"


def add_chat_files(spec: RLJobSpec, directory: Path) -> None:
    """Give a written export what belongs to its conversations: the chat template of the spec, and the end of a turn that training has taught."""
    template = spec.data.chat_template.path
    if template:
        shutil.copy(template, directory / "chat_template.jinja")  # takes precedence over the tokenizer's own
    whole = (directory / "config.json").is_file()  # a model, not adapters
    if whole and spec.task in TEACHING:  # other tasks need no tokenizer
        write_ends(spec, load_tokenizer(spec), directory)


def write_ends(spec: RLJobSpec, tokenizer: Tokenizer, directory: Path) -> None:
    """Add to an exported model's generation_config.json, and to config.json where it has one, the end of a turn that training has taught."""
    end, (_, ids) = turn_end(spec, tokenizer), stops(directory)
    if spec.task not in TEACHING or not end or end[1] in ids:
        return
    for name in ("generation_config.json", "config.json"):
        held = _read(directory / name)
        if name == "generation_config.json" or "eos_token_id" in held:
            held["eos_token_id"] = [end[1], *ids]
            (directory / name).write_text(json.dumps(held, indent=2) + "\n")


def _read(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text()) if file.is_file() else {}
