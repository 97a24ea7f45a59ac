"""Which characters of a rendered conversation the assistant wrote, and which of its tokens are therefore learnt.

Where the chat template marks the assistant's text with `{% generation %}`, these marks say it. Otherwise the conversation is rendered up to each of
the assistant's turns and up to the end of it: if the whole conversation begins with both, the turn lies between them, without its header and with
its end. Nothing is guessed: a template that writes a beginning otherwise once more follows is refused.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import batched

import numpy as np

from rljob_trainer.data.conversations import spoken
from rljob_trainer.data.formats import Chat
from rljob_trainer.data.tokenizer import OffsetTokenizer
from rljob_trainer.wire.trajectory import Bools

Span = tuple[int, int]
MARKED = re.compile(r"\{%-?\s*generation\s*-?%\}")


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
    found = np.zeros(len(starts), np.bool_)
    for a, b in spans:
        found |= (starts >= a) & (ends <= b) & ((starts < ends) | ((a < starts) & (ends < b)))
        for i in np.flatnonzero((starts < a) & (a < ends) & (ends <= b)):
            found[i] = text[starts[i] : a].isspace()
    return found


def _turn(tokenizer: OffsetTokenizer, chat: Chat, text: str, i: int) -> Span:
    """Of message i, by rendering what is before it and what ends with it."""
    if not i:
        raise Unsound("begins with the assistant's turn, which answers nothing", "begin it with the user's")
    before = render(tokenizer, chat, i, prompt=True)
    turn = text if i == len(chat.messages) - 1 else render(tokenizer, chat, i + 1)
    if text.startswith(before) and turn.startswith(before):
        if text.startswith(turn):
            return len(before), _end(tokenizer, turn)
        if end := _same_content(chat.messages[i].get("content", ""), text, turn, len(before)):
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
    found = [text[a:b] for a, b in spans]
    right = [m["content"] in part for m, part in zip(said[1::2], found, strict=False)]
    if right != [True, True] or len(found) > 2 or any("user-" in part for part in found):
        raise Unsound(
            "the {% generation %} marks of its chat template do not enclose the assistant's text, and nothing else",
            "put {% generation %} and {% endgeneration %} around the assistant's content and its end-of-turn token, outside of macros",
        )
