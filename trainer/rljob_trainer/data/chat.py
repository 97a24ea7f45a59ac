"""A row as the model reads it: plain text with the tokenizer's special tokens, or a conversation through its chat template; and which characters
of a rendered conversation the assistant wrote, so which of its tokens are learnt.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from hashlib import sha256
from itertools import batched

import numpy as np

from rljob_api.spec.model import DataSpec
from rljob_trainer.data.conversations import (
    require_no_system_column,
    require_no_system_prompt,
    spoken,
    with_system,
    with_system_prompt,
)
from rljob_trainer.data.formats import Chat
from rljob_trainer.data.pictures import require_no_images, with_parts
from rljob_trainer.data.rows import Row
from rljob_trainer.data.template_parts import require_written
from rljob_trainer.data.tokenizer import OffsetTokenizer, Tokenizer, ToolTokenizer, text_tokens
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.wire.trajectory import Bools

Span = tuple[int, int]
MARKED = re.compile(r"\{%-?\s*generation\s*-?%\}")


def encode_prompt(row: Row, spec: DataSpec, tokenizer: Tokenizer) -> tuple[str, list[int]]:
    """Text and token ids. A template writes its special tokens itself, so none are added to what it returns.

    Raises ConfigurationError when the tokenizer has no chat template or cannot encode the text, and when the template refuses the messages.
    """
    template, messages = spec.chat_template, row.prompt
    if isinstance(messages, str):
        if not template.texts:
            require_no_system_prompt(template, row.place)
            require_no_system_column(row.system, row.place)
            _require_no_tools(tokenizer, row)
            require_no_images(row.images, row.place)
            return messages, _tokens(messages, row, partial(text_tokens, tokenizer))
        messages = with_system((spoken("user", messages),), row.system, row.place)
    if not tokenizer.chat_template:
        raise _no_template(row)
    if spec.image_key:
        messages = with_parts(messages, len(row.images), row.place)
    _require_one_set_of_tools(tokenizer, row)
    try:
        said = list(with_system_prompt(messages, template))
        how = {"add_generation_prompt": True, "tokenize": False, **template.arguments}
        text = tokenizer.apply_chat_template(said, tools=row.tools, **how)
    except Exception as error:  # templates are programs, and raise what they like
        rule = f"the model's chat template refuses the messages: {type(error).__name__}: {error}"
        raise row.place.error(rule, "fix the messages (many templates know no system role and want turns)") from error
    tools = row.tools or isinstance(tokenizer, ToolTokenizer)
    require_written(tokenizer, tuple(said), tools, template.arguments, row.place)
    return text, _tokens(text, row, partial(tokenizer.encode, add_special_tokens=False))


def identity_of(row: Row, spec: DataSpec, tokenizer: Tokenizer) -> str:
    """What the prompt is made of: the row and, where it goes through the template, the template. Templates may write the date, so that their output
    identifies nothing."""
    template = spec.chat_template
    if isinstance(row.prompt, str) and not template.texts:
        return row.prompt
    made_of = [row.prompt, row.system, row.tools, template.arguments, template.system_prompt]
    return json.dumps([_template_digest(str(tokenizer.chat_template)), *made_of], sort_keys=True, default=str)


@lru_cache(maxsize=8)
def _template_digest(template: str) -> str:
    return sha256(template.encode(errors="surrogatepass")).hexdigest()


def _tokens(text: str, row: Row, encode: Callable[[str], list[int]]) -> list[int]:
    try:
        tokens = encode(text)
    except Exception as error:  # the tokenizers library raises plain Exceptions
        rule = f"the tokenizer in spec.model.path cannot encode its prompt: {error}"
        raise row.place.error(rule, "see that it is the model's, or correct the row") from error
    if tokens:
        return tokens
    fix = "see that tokenizer.json fits the tokenizer class of the model's type, or correct the row"
    raise row.place.error("the tokenizer in spec.model.path makes no token of its prompt", fix)


def _require_no_tools(tokenizer: Tokenizer, row: Row) -> None:
    """Raises ConfigurationError: only a template shows the policy what it may call."""
    if isinstance(tokenizer, ToolTokenizer) or row.tools:
        whose = "its column 'tools'" if row.tools else "spec.rollout.agent.tools"
        rule = f"holds a text, which is taken as it stands: the policy would not see the functions of {whose}"
        raise row.place.error(rule, "set spec.data.chatTemplate.texts: true, or write the row as messages")


def _require_one_set_of_tools(tokenizer: Tokenizer, row: Row) -> None:
    """Raises ConfigurationError: the agent answers calls of its own functions only."""
    if isinstance(tokenizer, ToolTokenizer) and row.tools:
        rule = "has functions in its column 'tools', and spec.rollout.agent.tools has others, which alone can be called"
        raise row.place.error(rule, "remove the column, or set spec.rollout.agent.python, which gets the row")


def _no_template(row: Row) -> ConfigurationError:
    rule = "the tokenizer in spec.model.path has no chat template"
    fix = "put one (chat_template.jinja) next to the tokenizer's files, name one in spec.data.chatTemplate.path, or write the prompts as plain texts"
    if isinstance(row.prompt, str):
        return ConfigurationError("spec.data.chatTemplate.texts", "true", rule, fix)
    return row.place.error(f"holds chat messages, and {rule}", fix)


class Unsound(Exception):
    """Nobody can tell which part of the text is the assistant's. The message says why, and what to do."""

    def __init__(self, rule: str, fix: str):
        super().__init__(rule, fix)
        self.rule, self.fix = rule, fix


def render(tokenizer: OffsetTokenizer, chat: Chat, count: int | None = None, prompt: bool = False) -> str:
    """The first `count` messages as the template writes them; `prompt`: up to where the assistant begins to write."""
    messages = list(chat.messages[:count])
    return tokenizer.apply_chat_template(
        messages, tools=chat.tools, add_generation_prompt=prompt, tokenize=False, **chat.arguments
    )


def assistant_spans(tokenizer: OffsetTokenizer, chat: Chat, text: str) -> list[Span]:
    """[from, to) in `text`, which is the whole chat rendered, of chat.learnt, the assistant's turns that are learnt. Raises Unsound."""
    template = tokenizer.get_chat_template(tools=chat.tools)
    if MARKED.search(template):
        _prove_marks(tokenizer, template, json.dumps(chat.arguments))
        marked, spans = _marks(tokenizer, template, chat)
        assert marked == text, "marks change no text"
        ends = [_marked_until(tokenizer, template, chat, i + more, len(spans)) for i in chat.learnt for more in (0, 1)]
        return [span for a, b in batched(ends, 2) for span in spans[a:b]]
    return [_turn(tokenizer, chat, text, i) for i in chat.learnt]


def _marked_until(tokenizer: OffsetTokenizer, template: str, chat: Chat, count: int, spans: int) -> int:
    """Spans that the template marks in the first `count` messages, out of `spans` in all of them."""
    if all(message["role"] != "assistant" for message in chat.messages[:count]):
        return 0
    whole = count == len(chat.messages)
    return spans if whole else len(_marks(tokenizer, template, replace(chat, messages=chat.messages[:count]))[1])


def learnt_tokens(text: str, offsets: Sequence[Span], spans: Sequence[Span]) -> Bools:
    """[T], which tokens lie within a span. White space of the header in front may be part of a span's first token; nothing else may."""
    starts, ends = np.array(offsets, np.int64).reshape(-1, 2).T
    learnt = np.zeros(len(starts), np.bool_)
    for a, b in spans:
        learnt |= (starts >= a) & (ends <= b) & ((starts < ends) | ((a < starts) & (ends < b)))
        for i in np.flatnonzero((starts < a) & (a < ends) & (ends <= b)):
            learnt[i] = text[starts[i] : a].isspace()
    return learnt


def _turn(tokenizer: OffsetTokenizer, chat: Chat, text: str, i: int) -> Span:
    """Of message i, by rendering what is before it and what ends with it."""
    if not i:
        raise Unsound("begins with the assistant's turn, which answers nothing", "begin it with the user's")
    before = render(tokenizer, chat, i, prompt=True)
    turn = text if i == len(chat.messages) - 1 else render(tokenizer, chat, i + 1)
    if text.startswith(before) and turn.startswith(before):
        if text.startswith(turn):
            return len(before), _end(tokenizer, turn)
        end = _same_content(chat.messages[i].get("content", ""), text, turn, len(before))
        if end:
            return len(before), _end(tokenizer, text[:end])
    rule = f"its chat template has no {{% generation %}} marks, and writes the beginning up to message {i + 1} otherwise once more follows"
    fix = "put the marks around the assistant's text in chat_template.jinja" + (
        "" if i == len(chat.messages) - 1 else ", or set spec.data.lossOn: lastAssistant"
    )
    raise Unsound(rule, fix)


def _same_content(content: str, text: str, turn: str, start: int) -> int:
    """The end of a turn that is written otherwise as the last one (Qwen3 puts an empty thought in front), if it is here nothing but the message's own
    content and what the template writes behind it; 0 else."""
    said = content.strip()
    expected = turn[turn.rfind(said) :]
    rest = text[start:]
    at = start + len(rest) - len(rest.lstrip())
    return at + len(expected) if said and len(expected) > len(said) and text.startswith(expected, at) else 0


def _end(tokenizer: OffsetTokenizer, text: str) -> int:
    """Without white space behind an end-of-turn token, which the model will never be asked to write."""
    bare = text.rstrip()
    return len(bare) if bare.endswith(_added(tokenizer)) else len(text)


@lru_cache(maxsize=8)
def _added(tokenizer: OffsetTokenizer) -> tuple[str, ...]:
    return tuple(tokenizer.get_added_vocab())


def _marks(tokenizer: OffsetTokenizer, template: str, chat: Chat) -> tuple[str, list[Span]]:
    """Text, and the spans that the template marks; an end-of-sequence token right behind one belongs to it."""
    from transformers.utils.chat_template_utils import render_jinja_template

    (text,), (spans,) = render_jinja_template(
        [list(chat.messages)],
        tools=chat.tools,
        chat_template=template,
        return_assistant_tokens_mask=True,
        **{**tokenizer.special_tokens_map, **chat.arguments},
    )
    eos = tokenizer.eos_token or ""
    return text, [(a, b + len(eos) if eos and text.startswith(eos, b) else b) for a, b in spans]


@lru_cache(maxsize=8)
def _prove_marks(tokenizer: OffsetTokenizer, template: str, arguments: str) -> None:
    """Transformers places marks wrongly inside of macros: a probe tells. `arguments`: of the template, as JSON."""
    said = [spoken(role, f"{role}-{i}.") for i, role in enumerate(("user", "assistant", "user", "assistant"))]
    text, spans = _marks(tokenizer, template, Chat(tuple(said), None, 0, json.loads(arguments)))
    marked = [text[a:b] for a, b in spans]
    right = [m["content"] in part for m, part in zip(said[1::2], marked, strict=False)]
    if right != [True, True] or len(marked) > 2 or any("user-" in part for part in marked):
        raise Unsound(
            "the {% generation %} marks of its chat template do not enclose the assistant's text, and nothing else",
            "put {% generation %} and {% endgeneration %} around the assistant's content and its end-of-turn token, outside of macros",
        )
