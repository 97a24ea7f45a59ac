"""The bodies of a rollout server's routes. No torch here.

The generate route: prompt and images in a request, responses in its answer (completions.py). Arrays of a request, and of other routes' answers,
travel as base64 of their little-endian bytes. This keeps log-probabilities exact (float32) and is faster than JSON lists: with a prompt of 64k tokens
0.2 ms to write, with a list 8.4.

The sample route, which the gateway of a service asks: samples of one prompt, and the prompt's own log-probabilities. These are the model's: at
temperature 1, and over all tokens, whatever the sampling was. So they are those that the ranks measure.

The parse route: a response as token ids, and what it says: tool calls, reasoning and content. It is a route of its own, because a response may have
been generated in pieces, by several servers, and only its whole can be read.
"""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rljob_api.families import ParserNames
from rljob_api.rules.lora import WEIGHTS
from rljob_trainer.wire.images import Placed
from rljob_trainer.wire.trajectory import Floats, Ints

CONTEXT_TOO_LONG = "context_length_exceeded"
"""The `code` of an error, where prompt and response do not fit into the model's context: OpenAI's name for it."""
EXACT_ON_CPU = "RLJOB_EXACT_ON_CPU"
"""Environment variable of a server on CPUs, `1` where `rollout.exact` asks for it (server/compat/exact_on_cpu.py)."""
BATCH_INVARIANT = "VLLM_BATCH_INVARIANT"
"""vLLM's environment variable for its batch-invariant mode, `1` in servers and ranks on GPUs where `rollout.exact` asks for it."""
ToolCall = dict[str, Any]
"""In OpenAI's form: `id`, `type` and `function`, of `name` and `arguments`, a text that should be JSON."""


def pack_tokens(tokens: Sequence[int] | Ints) -> str:
    """The `prompt` of a request."""
    return pack(tokens, "<i4")


def unpack_tokens(packed: str) -> list[int]:
    """The tokens that `pack_tokens` packed. Raises ValueError."""
    return np.frombuffer(base64.b64decode(packed, validate=True), "<i4").tolist()


def encode_images(images: Sequence[Placed]) -> list[dict[str, Any]]:
    """The `images` of a request: `place`, `grid` and `merge` as in images.py, and the pixels as the trainer's own image processor made them.

    So trainer and server feed their vision towers the same pixels, and there is no second image processor.
    """
    return [
        {
            "place": place,
            "grid": list(image.grid),
            "merge": image.merge,
            "pixels": pack(image.pixels, "<f4"),
        }
        for place, image in images
    ]


def pack(numbers: Any, kind: str) -> str:
    """An array of numpy's type `kind` as text."""
    return base64.b64encode(np.asarray(numbers, kind).tobytes()).decode()


def unpack(text: str, kind: str) -> Any:
    """The inverse of `pack`, of one dimension. Raises ValueError."""
    return np.frombuffer(base64.b64decode(text), kind)


DIGEST = "adapter_model.sha256"
"""In a snapshot's directory: `snapshot_digest` as it was written. Servers serve no snapshot that differs from it."""


POLICY = "policy.json"
"""In the directory of a snapshot of a whole model: `digest` of its tensors, and `sequences` and `log_probs` of the ranks, which servers are compared
with."""


def snapshot_digest(directory: str | Path) -> str:
    """sha256 of the file of its tensors, in hex."""
    with (Path(directory) / WEIGHTS).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True, slots=True)
class Adapter:
    """A snapshot on the volume: a directory of the peft library, and DIGEST. Servers read it when they need it."""

    name: str
    """No two snapshots have the same; what is cached of a prompt belongs to a name."""
    directory: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRequest:
    """`n` samples of a prompt."""

    tokens: Sequence[int] | Ints
    n: int
    seed: int
    """Of sample 0; vLLM adds i for sample i."""
    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0: all tokens."""
    stop: Sequence[str] = ()
    """Texts that end a sample and are part of it."""
    stop_tokens: Sequence[int] = ()
    """Tokens that end a sample and are part of it."""
    ends: bool = True
    """The model's own end of a text ends a sample, too."""
    prompt_log_probs: int = 0
    """Last tokens of the prompt that get theirs."""
    likeliest: int = 0
    """Tokens that are named at each position of a sample."""
    likeliest_of_prompt: int = 0
    """The same, at the positions of the prompt's last tokens that get their log-probabilities, or at all where none does."""
    adapter: Adapter | None = None
    """None: the base model."""
    policy_step: int | None = None
    """Of the policy that the samples are drawn from, on servers that get whole models. None: servers read adapters."""

    def body(self) -> dict[str, Any]:
        """The request as JSON."""
        return asdict(self) | {"tokens": pack_tokens(self.tokens)}

    @staticmethod
    def read(body: dict[str, Any]) -> "SampleRequest":
        """The inverse of `body`. Raises KeyError, TypeError, ValueError."""
        adapter = body.pop("adapter")
        tokens = unpack_tokens(body.pop("tokens"))
        return SampleRequest(**body, tokens=tokens, adapter=Adapter(**adapter) if adapter else None)


@dataclass(frozen=True, slots=True, eq=False)
class LikeliestTokens:
    """The likeliest tokens at each position, the likeliest first."""

    tokens: Ints
    """[positions, k] int32"""
    log_probs: Floats
    """[positions, k] float32; NaN where there is none."""

    def body(self) -> list[Any]:
        """As JSON."""
        return [pack(self.tokens, "<i4"), pack(self.log_probs, "<f4"), self.tokens.shape[1]]

    @staticmethod
    def read(body: list[Any] | None) -> "LikeliestTokens | None":
        """The inverse of `body`. None: they were not asked for."""
        if body is None:
            return None
        tokens, log_probs, k = body
        return LikeliestTokens(unpack(tokens, "<i4").reshape(-1, k), unpack(log_probs, "<f4").reshape(-1, k))


@dataclass(frozen=True, slots=True, eq=False)
class ServedSample:
    """One sample."""

    tokens: Ints
    log_probs: Floats
    finish_reason: Literal["stop", "length", "abort"]
    likeliest: LikeliestTokens | None = None
    """None: not asked for."""

    def body(self) -> list[Any]:
        """As JSON."""
        likeliest = self.likeliest and self.likeliest.body()
        return [pack(self.tokens, "<i4"), pack(self.log_probs, "<f4"), self.finish_reason, likeliest]

    @staticmethod
    def read(body: list[Any]) -> "ServedSample":
        """The inverse of `body`."""
        tokens, log_probs, reason, likeliest = body
        return ServedSample(unpack(tokens, "<i4"), unpack(log_probs, "<f4"), reason, LikeliestTokens.read(likeliest))


@dataclass(frozen=True, slots=True, eq=False)
class SampleAnswer:
    """What came of a request."""

    samples: tuple[ServedSample, ...]
    prompt: Floats | None = None
    """[tokens of the prompt] float32; NaN for the first one, and for those that were not asked for; None: none was."""
    likeliest_of_prompt: LikeliestTokens | None = None
    """None: not asked for."""

    @property
    def size(self) -> int:
        """Bytes of its numbers."""
        named = [s.likeliest for s in self.samples] + [self.likeliest_of_prompt]
        positions = sum(len(s.tokens) for s in self.samples) + sum(n.tokens.size for n in named if n)
        return 8 * positions + (0 if self.prompt is None else 4 * len(self.prompt))

    def body(self) -> dict[str, Any]:
        """The answer as JSON."""
        prompt = None if self.prompt is None else pack(self.prompt, "<f4")
        likeliest = self.likeliest_of_prompt and self.likeliest_of_prompt.body()
        return {"samples": [s.body() for s in self.samples], "prompt": prompt, "likeliest_of_prompt": likeliest}

    @staticmethod
    def read(body: dict[str, Any]) -> "SampleAnswer":
        """The inverse of `body`."""
        prompt = None if body["prompt"] is None else unpack(body["prompt"], "<f4")
        likeliest = LikeliestTokens.read(body["likeliest_of_prompt"])
        return SampleAnswer(tuple(map(ServedSample.read, body["samples"])), prompt, likeliest)


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
