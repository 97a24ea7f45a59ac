"""What the gateway of a service asks a rollout server: samples of one prompt, and the prompt's own log-probabilities. The bodies of protocol.SAMPLE.

Log-probabilities are the model's: at temperature 1, and over all tokens, whatever the sampling was. So they are those that the ranks measure.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from rljob_trainer.wire.generate import pack, pack_tokens, unpack, unpack_tokens
from rljob_trainer.wire.trajectory import Floats, Ints


@dataclass(frozen=True, slots=True)
class Adapter:
    """A snapshot on the volume: a directory of the peft library. Servers read it when they need it."""

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
    prompt_log_probs: bool = False
    adapter: Adapter | None = None
    """None: the base model."""

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
class ServedSample:
    """One sample."""

    tokens: Ints
    log_probs: Floats
    finish_reason: Literal["stop", "length", "abort"]


@dataclass(frozen=True, slots=True, eq=False)
class SampleAnswer:
    """What came of a request."""

    samples: tuple[ServedSample, ...]
    prompt: Floats | None = None
    """[tokens of the prompt] float32, the first NaN; None: not asked for."""

    def body(self) -> dict[str, Any]:
        """The answer as JSON."""
        samples = [[pack(s.tokens, "<i4"), pack(s.log_probs, "<f4"), s.finish_reason] for s in self.samples]
        return {"samples": samples, "prompt": None if self.prompt is None else pack(self.prompt, "<f4")}

    @staticmethod
    def read(body: dict[str, Any]) -> "SampleAnswer":
        """The inverse of `body`."""
        samples = tuple(ServedSample(unpack(t, "<i4"), unpack(p, "<f4"), reason) for t, p, reason in body["samples"])
        return SampleAnswer(samples, None if body["prompt"] is None else unpack(body["prompt"], "<f4"))
