"""The bodies of the parse route: a response as token ids, and what it says: tool calls, reasoning and content.

A route of its own, apart from that which generates: a response may have been generated in pieces, by several servers, and only its whole can be read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rljob_api.families import ParserNames
from rljob_trainer.wire.generate import pack_tokens, unpack_tokens
from rljob_trainer.wire.trajectory import Ints

ToolCall = dict[str, Any]
"""In OpenAI's form: `id`, `type` and `function`, of `name` and `arguments`, a text that should be JSON."""


@dataclass(frozen=True, slots=True)
class ParseRequest:
    """A whole response, and how to read it."""

    prompt: Sequence[int] | Ints
    tokens: Sequence[int] | Ints
    ended: bool
    """The last of `tokens` ends the turn, and is no part of its text."""
    parsers: ParserNames
    """An empty `tools`: no calls are looked for."""
    tools: Sequence[Mapping[str, Any]] = ()
    """JSON schemas in OpenAI's form: arguments get the types that these say."""
    template: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the chat template, by which some families know whether the policy reasons."""

    def body(self) -> dict[str, Any]:
        """The request as JSON."""
        packed = {"prompt": pack_tokens(self.prompt), "tokens": pack_tokens(self.tokens)}
        given = {"tools": list(self.tools), "template": dict(self.template), "ended": self.ended}
        return packed | given | {"parsers": list(self.parsers)}

    @staticmethod
    def of(body: Mapping[str, Any]) -> "ParseRequest":
        """What `body` made. Raises KeyError, TypeError, ValueError."""
        tools, template, parsers = list(body["tools"]), dict(body["template"]), ParserNames(*body["parsers"])
        tokens = unpack_tokens(body["tokens"])
        return ParseRequest(unpack_tokens(body["prompt"]), tokens, bool(body["ended"]), parsers, tools, template)


@dataclass(frozen=True, slots=True)
class Parsed:
    """What a response says."""

    content: str
    reasoning: str = ""
    tool_calls: Sequence[ToolCall] = ()

    def body(self) -> dict[str, Any]:
        """The answer as JSON."""
        return asdict(self)

    @staticmethod
    def of(body: dict[str, Any]) -> "Parsed":
        """What `body` made. Raises ParserUnusableError where the parser does not fit the model, and UnreadError."""
        if "unusable" in body:
            raise ParserUnusableError(body["unusable"])
        if "unread" in body:
            raise UnreadError(body["unread"])
        return Parsed(**body)


class ParserUnusableError(ValueError):
    """A parser cannot read what this model writes: its tokenizer lacks the tokens that calls begin with, for example."""


class UnreadError(Exception):
    """Reading a response took too long, or ended what read it, so that its text is all there is."""
