"""Between a conversation and tokens. What the policy reads: tokens that it generated stay as they are, only what is said behind them is
rendered. And what its responses say, read by the rollout servers with vLLM's parsers: the driver has no vLLM."""

import contextlib
import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import eq
from typing import Any

import numpy as np

from rljob_api.families import ParserNames, parsers_of
from rljob_api.spec import RLJobSpec
from rljob_api.spec.model import ChatTemplate
from rljob_trainer.agents.api import Message, PolicyError
from rljob_trainer.agents.messages import plain, reasoning_of
from rljob_trainer.agents.shared import with_objects_of, within
from rljob_trainer.agents.shown_images import ShownImages
from rljob_trainer.data.tokenizer import Tokenizer
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.model_files import model_config
from rljob_trainer.wire.rollout_server import Parsed, ParseRequest, ParserUnusableError, ToolCall, UnreadError
from rljob_trainer.wire.trajectory import Ints

MARK = "rljob-assistant-turn"
"""Stands for the assistant's turn while the template is asked what it writes behind one."""
END = "rljob-last-argument"
"""Stands for what its last call ends with."""
ASKED: dict[str, Any] = {"role": "user", "content": MARK.upper()}
SAID: dict[str, Any] = {"role": "assistant", "content": MARK}
DEVELOPER = "developer"
"""A role that few templates know; it is OpenAI's later name for `system`."""
FIELD = "spec.rollout.agent.toolParser"
FIX = "name the parser of vLLM that reads what this model writes"
log = logging.getLogger(__name__)
AskServer = Callable[[ParseRequest], Awaitable[Parsed]]


def reply(
    context: Sequence[int],
    messages: Sequence[Message],
    tokenizer: Tokenizer,
    template: ChatTemplate,
    calls: Sequence[ToolCall] = (),
) -> list[int]:
    """Tokens of `messages` behind `context`, which ends with an assistant's turn, up to where the assistant begins again. Raises PolicyError.

    Args:
        calls: of that turn. Some templates want to see them before they write what was returned, and take names or ids from them
    """
    if not context:
        raise PolicyError("nothing to reply to: the context has no token")
    last = tokenizer.decode([context[-1]], skip_special_tokens=False)
    behind = _behind_calls(calls, messages, context[-1], tokenizer, template) if calls else None
    if behind is None:
        _, mark, behind = written([ASKED, SAID, *messages], tokenizer, template).partition(MARK)
        if not mark:  # the first is ours: a message may hold another
            raise PolicyError("the chat template does not write what the assistant said")
        if special(context[-1], tokenizer) or _ends_turn(last, messages, tokenizer, template):
            behind = behind.removeprefix(last)
    return encoded(behind, tokenizer)


def _ends_turn(last: str, messages: Sequence[Message], tokenizer: Tokenizer, template: ChatTemplate) -> bool:
    """Whether the template itself begins with this text behind an assistant's turn, whatever the messages say: their own text stays whole."""
    others = [{**message, "content": END} for message in messages]
    behind = written([ASKED, SAID, *others], tokenizer, template).partition(MARK)[2]
    return behind.partition(END)[0].startswith(last)


def _behind_calls(
    calls: Sequence[ToolCall], messages: Sequence[Message], last: int, tokenizer: Tokenizer, template: ChatTemplate
) -> str | None:
    """What follows `last`, the token that the turn ends with. None: the template does not write these calls, or not as the policy did."""
    marked = json.loads(json.dumps(list(calls)))
    marked[-1]["function"]["arguments"] = {MARK: END}
    turn = [ASKED, SAID | {"tool_calls": marked}]
    try:
        alone = written(turn, tokenizer, template, goes_on=False)
        whole = written([*turn, *messages], tokenizer, template)
        plain = written([ASKED, SAID], tokenizer, template, goes_on=False)
    except PolicyError:
        return None
    closing, rest = alone.partition(END)[2], whole.partition(END)[2]
    turn_end = plain.partition(MARK)[2]
    if not closing or not rest.startswith(closing):
        return None
    said, word = rest.removeprefix(closing), special(last, tokenizer)
    if word and word in closing:
        return closing.rpartition(word)[2] + said
    return turn_end + said if turn_end and closing.endswith(turn_end) else None


def special(token: int, tokenizer: Tokenizer) -> str:
    """The text of a special token; empty for any other."""
    is_special = not tokenizer.decode([token], skip_special_tokens=True)
    return tokenizer.decode([token], skip_special_tokens=False) if is_special else ""


def written(
    messages: Sequence[Message],
    tokenizer: Tokenizer,
    template: ChatTemplate,
    tools: Sequence[Mapping[str, Any]] = (),
    goes_on: bool = True,
) -> str:
    """What the chat template makes of a conversation. Raises PolicyError. `goes_on`: with what the assistant's next turn begins with."""
    if not tokenizer.chat_template:
        raise PolicyError("the tokenizer in spec.model.path has no chat template")
    how: dict[str, Any] = {"add_generation_prompt": goes_on, "tokenize": False, **template.arguments}
    spoken = [_spoken(message) for message in messages]
    if DEVELOPER not in str(tokenizer.chat_template):  # it would leave these messages out, or refuse them
        spoken = [m | {"role": "system"} if m["role"] == DEVELOPER else m for m in spoken]
    try:
        text: str = tokenizer.apply_chat_template(spoken, list(tools) or None, **how)
    except Exception as error:  # templates are programs, and raise what they like
        raise PolicyError(f"the chat template refuses the messages: {type(error).__name__}: {error}") from error
    return text


def encoded(text: str, tokenizer: Tokenizer) -> list[int]:
    """Without special tokens in front or behind. Raises PolicyError: a tool's answer, for example, may hold half a character."""
    try:
        return tokenizer.encode(text, add_special_tokens=False)
    except Exception as error:  # the tokenizers library raises plain Exceptions
        raise PolicyError(f"the tokenizer cannot encode {text[:200]!r}: {error}") from error


@dataclass(frozen=True, slots=True, eq=False)
class _Known:
    """A conversation that ends with a turn of the policy's."""

    messages: list[dict[str, Any]]
    reasoning: list[str]
    """Of each message; a client need not repeat it."""
    tokens: Ints

    def is_continued(self, said: list[dict[str, Any]]) -> bool:
        return len(said) > len(self.messages) and said[: len(self.messages)] == self.messages

    def is_same(self, other: "_Known") -> bool:
        same = (self.messages, self.reasoning) == (other.messages, other.reasoning)
        return same and np.array_equal(self.tokens, other.tokens)

    def likeness(self, reasoning: list[str]) -> tuple[int, int]:
        """The more, the likelier this one is meant: its length, then how much of its reasoning is repeated."""
        return len(self.messages), sum(map(eq, self.reasoning, reasoning))


class Conversations:
    """Of one trajectory, whose agent says the whole conversation every time it asks."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate, shown: ShownImages | None = None):
        """`shown`: has read the images of all messages."""
        self._tokenizer, self._template = tokenizer, template
        self._shown = shown or ShownImages()
        self._known: list[_Known] = []

    def copy(self) -> "Conversations":
        """Which knows what this one knows."""
        copied = Conversations(self._tokenizer, self._template, self._shown)
        copied._known = list(self._known)
        return copied

    def context(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[int]:
        """What the policy continues: behind the longest conversation that these messages begin with, or from their first on. Raises PolicyError.

        Among several of one length it is that whose reasoning the messages repeat, or else the latest.
        """
        said, reasoning = [plain(message) for message in messages], [*map(reasoning_of, messages)]
        beginnings = [k for k in reversed(self._known) if k.is_continued(said)]
        known = max(beginnings, key=lambda k: k.likeness(reasoning), default=None)
        if known:
            rest, calls = messages[len(known.messages) :], known.messages[-1].get("tool_calls", ())
            before = known.tokens.tolist()
            new = reply(before, rest, self._tokenizer, self._template, calls)
            return before + self._shown.expanded(before, new, rest)
        whole = encoded(written(messages, self._tokenizer, self._template, tools), self._tokenizer)
        return self._shown.expanded((), whole, messages)

    def add(self, messages: Sequence[Message], answer: Message, tokens: list[int]) -> None:
        """The policy answered, and `tokens` are those of the whole conversation."""
        whole, earlier = (*messages, answer), self._known
        said = with_objects_of([*map(plain, whole)], [k.messages for k in earlier])
        reasoning = with_objects_of([*map(reasoning_of, whole)], [k.reasoning for k in earlier])
        known = _Known(said, reasoning, np.array(tokens, np.int32))
        shared = within(known.tokens, [k.tokens for k in earlier])
        before = [replace(k, tokens=own) for k, own in zip(earlier, shared, strict=True) if not k.is_same(known)]
        self._known = [*before, known]


def _spoken(message: Message) -> dict[str, Any]:
    """As chat templates read it: arguments of calls are objects, and reasoning is called `reasoning_content`. Raises PolicyError."""
    spoken = plain(message)
    reasoning = reasoning_of(message)
    if reasoning:
        spoken["reasoning_content"] = reasoning
    if "tool_calls" in spoken:
        spoken["tool_calls"] = [_with_objects(call) for call in spoken["tool_calls"]]
    return spoken


def _with_objects(call: Any) -> Any:
    """The call with arguments as an object, where they are JSON."""
    with contextlib.suppress(ValueError, TypeError, KeyError, RecursionError):
        arguments = call["function"]["arguments"]
        if isinstance(arguments, str):
            return {**call, "function": {**call["function"], "arguments": json.loads(arguments)}}
    return call


class ResponseParser:
    """Of one job."""

    def __init__(self, names: ParserNames, template: Mapping[str, Any], ask: AskServer):
        """`template`: arguments of the chat template."""
        self._names, self._template, self._ask = names, template, ask

    @staticmethod
    def of(spec: RLJobSpec, ask: AskServer) -> "ResponseParser":
        agent, names = spec.rollout.agent, ParserNames("", "")
        if agent:
            names = parsers_of(agent.tool_parser, agent.reasoning_parser, model_config(spec.model.path)[0])
        return ResponseParser(names, spec.data.chat_template.arguments, ask)

    async def parsed(
        self, prompt: Ints, tokens: Sequence[int], ended: bool, tools: Sequence[Mapping[str, Any]]
    ) -> Parsed | None:
        """What a response says; None where there is nothing but its text: no functions to call, and no parser of reasoning, or the parser took
        too long.

        Raises ConfigurationError for parsers that do not fit the model, and what the rollouts raise.
        """
        if tools and not self._names.tools:
            raise ConfigurationError(FIELD, "unset", "the agent has tools, and the model's family has no parser", FIX)
        names = self._names if tools else ParserNames("", self._names.reasoning)
        if not any(names):
            return None
        try:
            return await self._ask(ParseRequest(prompt, tokens, ended, names, tools, self._template))
        except ParserUnusableError as error:
            shown = " and ".join(filter(None, names))
            rule = f"vLLM cannot read what this model writes with it: {error}"
            raise ConfigurationError(FIELD, shown, rule, FIX) from error
        except UnreadError as error:
            log.warning("a turn of %d tokens stays plain text, as if it called nothing: %s", len(tokens), error)
            return None
