"""What the function of an agent works with: `async def rollout(prompt, policy, row) -> Trajectory | None`.

Imported by the function's process, so nothing large: tokens are lists of ids here.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import index
from typing import Any, Literal, SupportsIndex, cast

from rljob_trainer.agents.sandbox import Sandbox
from rljob_trainer.sandboxes.sandbox import SandboxError

LARGEST = 2**31
Message = Mapping[str, Any]
"""Of a conversation: `{"role": "user", "content": ...}`."""
Ask = Callable[[str, dict[str, Any]], Awaitable[Any]]
"""A question to the driver, by its name and arguments, and the answer."""


class PolicyError(Exception):
    """The policy cannot be asked that."""

    def __init__(self, reason: str, code: str = ""):
        """`code`: OpenAI's name for the reason, if it has one."""
        super().__init__(reason)
        self.code = code


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the row of the data says."""

    tokens: list[int]
    """Through the chat template where the row holds messages."""
    text: str
    """What the tokens stand for."""
    answer: str
    data_source: str


@dataclass(frozen=True, slots=True)
class Turn:
    """What the policy wrote behind `context`."""

    sequence: list[int] = field(repr=False)
    """Tokens that begin with the context. The turns of a history share them: contexts of their own would grow with the square of the turns."""
    tokens: list[int]
    log_probs: list[float]
    """Of each of `tokens`, at the temperature of the job."""
    policy_steps: list[int]
    """Of each of `tokens`, the step of the policy that wrote it."""
    text: str
    """Of `tokens`, without special tokens."""
    finish_reason: Literal["stop", "length"]
    """`stop`: with the end-of-sequence token or a text of `stop`; `length`: cut off."""
    content: str
    """The text, without what was read as reasoning or as a call."""
    reasoning: str
    """Empty without spec.rollout.agent.reasoningParser."""
    tool_calls: list[dict[str, Any]]
    """In OpenAI's form, of the `tools` that the policy was asked with."""
    context_length: int | None = None
    """So many of `sequence` are the context; None: all."""

    @property
    def context(self) -> list[int]:
        """The tokens that the policy continued."""
        return self.sequence[: self.context_length]

    @property
    def whole(self) -> list[int]:
        """Context and tokens: what the next turn continues."""
        return self.context + self.tokens

    @property
    def message(self) -> dict[str, Any]:
        """As the assistant's message in a conversation."""
        return message_of({"content": self.content, "reasoning": self.reasoning, "tool_calls": self.tool_calls})


@dataclass(frozen=True, slots=True)
class Trajectory:
    """What is trained on: of `tokens` those that `policy.generate` returned at that place. All others are context."""

    tokens: Sequence[int]
    """From the beginning of the prompt, as they were generated: never a text that was tokenised again."""
    reward: float = 0.0
    """Added to what spec.rewards make of the last turn."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Numbers to report, by names of your own."""
    rewards: Sequence[float] = ()
    """One for each turn that the policy was asked for, in their order; empty: turns have none of their own. They add to `reward`. Estimators that say
    when a reward was earned (gae, reinforce++, remax) have it at the end of its turn."""
    branches: Sequence[Sequence[int]] = ()
    """Further sequences like `tokens`, where the agent rewrote its context. They share the reward. A turn that stands in several is learnt from in
    the first."""


@dataclass(frozen=True, slots=True)
class LastTurn:
    """The last turn, which the driver has, too: of a context that continues it, only what is new is sent."""

    number: int = -1
    tokens: list[int] = field(default_factory=list)
    """With its context."""
    messages: list[dict[str, Any]] = field(default_factory=list)
    """The conversation that it ends; empty: it continues token ids."""


class Policy:
    """The policy that is trained, for one trajectory."""

    def __init__(self, ask: Ask, base_url: str = "", last: LastTurn | None = None):
        """`last`: behind which the agent continues."""
        self._ask = ask
        self.base_url = base_url
        """Of an OpenAI-compatible endpoint that is the policy in this trajectory, for client libraries. Any model name and key will do."""
        self._last = last or LastTurn()

    async def generate(
        self,
        context: Sequence[int] | Sequence[Message],
        *,
        max_tokens: int | None = None,
        stop: Sequence[str] | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> Turn | None:
        """What the policy writes behind the context; None when maxTurns or maxTokens of spec.rollout.agent leave no room for another turn.

        Temperature and seed are the job's. Raises PolicyError, and TypeError or ValueError for arguments of another type.

        Args:
            context: token ids, or the messages of a conversation, which the chat template renders. Of messages that repeat a conversation with its
                turns (Turn.message) and add to it, the ids stay and only what was added is rendered
            max_tokens: at most so many, in place of spec.rollout.sampling.maxTokens, if these are fewer
            stop: text or texts that end the turn, in place of spec.rollout.sampling.stop; the turn keeps them
            tools: JSON schemas of functions, in OpenAI's form, whose calls are read (Turn.tool_calls). Where messages are rendered from their
                beginning, the template shows them
        """
        limits = _limits(max_tokens, stop) | {"tools": [dict(tool) for tool in tools]}
        if context and isinstance(context[0], Mapping):
            return await self._converse([dict(message) for message in cast(Sequence[Message], context)], limits)
        tokens, last = ids(cast(Sequence[int], context)), self._last
        asked: dict[str, Any] = {"context": tokens, "after": None}
        if last.tokens and tokens[: len(last.tokens)] == last.tokens:
            asked = {"context": tokens[len(last.tokens) :], "after": last.number}
        generated = await self._ask("generate", asked | limits)
        return None if generated is None else self._turn(tokens, generated)

    async def _converse(self, messages: list[dict[str, Any]], limits: dict[str, Any]) -> Turn | None:
        asked: dict[str, Any] = {"messages": messages, "after": None}
        last = self._last
        if last.messages and messages[: len(last.messages)] == last.messages:
            asked = {"messages": messages[len(last.messages) :], "after": last.number}
        generated = await self._ask("converse", asked | limits)
        if generated is None:
            return None
        before = [] if generated.pop("after") is None else last.tokens
        turn = self._turn(before + generated.pop("context"), generated)
        self._last = replace(self._last, messages=[*messages, turn.message])
        return turn

    def _turn(self, context: list[int], generated: dict[str, Any]) -> Turn:
        number = generated.pop("number")
        turn = Turn(context, **generated)
        self._last = LastTurn(number, turn.whole)
        return turn

    async def encode(self, text: str) -> list[int]:
        """The tokens of a text, for what somebody else says: no special tokens are added in front or behind. Raises PolicyError."""
        token_ids: list[int] = await self._ask("encode", {"text": text})
        return token_ids

    async def reply(self, context: Sequence[int], messages: Sequence[Message]) -> list[int]:
        """What the chat template writes of `messages` (`{"role": "tool", "content": ...}`, or a user's) behind `context`, which ends with a turn of
        the policy's, up to where the next one begins. The policy's own end-of-turn token is not written twice. Raises PolicyError."""
        tokens = ids(context)
        after = self._last.number if tokens == self._last.tokens else None
        said = [dict(message) for message in messages]
        # the template's text begins behind the last token
        token_ids: list[int] = await self._ask("reply", {"context": tokens[-1:], "messages": said, "after": after})
        return token_ids

    def sandbox(self, environment: str) -> Sandbox:
        """A sandbox of this entry of spec.environments, by its name, inside `async with`. Its methods raise SandboxError."""
        return Sandbox(self._ask_sandbox, environment)

    async def _ask_sandbox(self, method: str, arguments: dict[str, Any]) -> Any:
        try:
            return await self._ask(method, arguments)
        except PolicyError as error:
            raise SandboxError(str(error)) from error

    async def trajectory(
        self,
        reward: float = 0.0,
        metrics: Mapping[str, float] | None = None,
        *,
        rewards: Sequence[float] = (),
        branches: bool = False,
    ) -> Trajectory:
        """The conversation that the policy continued last, through `base_url` for example. Raises PolicyError before its first turn.

        Args:
            branches: with all conversations that the agent gave up for another
        """
        tokens, *others = await self._ask("sequences", {"branches": branches})
        return Trajectory(tokens, reward, dict(metrics or {}), rewards, others)


def message_of(turn: Mapping[str, Any] | None) -> dict[str, Any]:
    """What the assistant said in a turn, if there was one. `reasoning` as vLLM's own server calls it."""
    if turn is None:
        return {"role": "assistant", "content": ""}
    known = {key: turn[key] for key in ("reasoning", "tool_calls") if turn[key]}
    return {"role": "assistant", "content": turn["content"], **known}


def ids(tokens: Sequence[int]) -> list[int]:
    """As a list. Raises TypeError or ValueError for what is no token id."""
    token_ids = [index(token) for token in tokens]
    strange = [token for token in token_ids if not 0 <= token < LARGEST]
    if strange:
        raise ValueError(f"{strange[0]} is no token id")
    return token_ids


def _limits(max_tokens: int | None, stop: Sequence[str] | None) -> dict[str, Any]:
    """As the driver is asked. Raises TypeError here, in the agent's process: what the driver stumbles over ends the attempt."""
    if isinstance(max_tokens, bool) or not isinstance(max_tokens, SupportsIndex | None):
        raise TypeError(f"max_tokens: {max_tokens!r} is no whole number")
    texts = [stop] if isinstance(stop, str) else stop  # a text is a sequence too, of its characters
    strange = [text for text in texts or () if not isinstance(text, str)]
    if strange:
        raise TypeError(f"stop: {strange[0]!r} is no text")
    return {
        "max_tokens": None if max_tokens is None else index(max_tokens),
        "stop": None if texts is None else list(texts),
    }
