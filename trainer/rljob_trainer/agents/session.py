"""The driver's side of one trajectory: it renders the agent's messages for the policy, answers the agent, and keeps what the policy generated.

Tokens that were generated stay as they are in the conversation: only what follows them is rendered.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rljob_api.spec.agent import AgentSpec
from rljob_api.spec.common import Sampling
from rljob_api.spec.model import ChatTemplate
from rljob_trainer.agents.api import Message, PolicyError
from rljob_trainer.agents.recording import Recorded, Rollout, endings, rollout_of
from rljob_trainer.data.prompts import Prompt
from rljob_trainer.data.tokenizer import Tokenizer
from rljob_trainer.wire.rollout_client import RequestRefusedError
from rljob_trainer.wire.trajectory import Ints, Segment

MARK = "rljob-assistant-turn"
"""Stands for the assistant's turn while the template is asked what it writes behind one."""


def reply(
    context: Sequence[int], messages: Sequence[Mapping[str, Any]], tokenizer: Tokenizer, template: ChatTemplate
) -> list[int]:
    """Tokens of `messages` behind `context`, which ends with an assistant's turn, up to where the assistant begins again. Raises PolicyError."""
    if not context:
        raise PolicyError("nothing to reply to: the context has no token")
    if not tokenizer.chat_template:
        raise PolicyError("the tokenizer in spec.model.path has no chat template")
    before = [{"role": "user", "content": MARK.upper()}, {"role": "assistant", "content": MARK}]
    try:
        text = tokenizer.apply_chat_template(
            [*before, *messages], add_generation_prompt=True, tokenize=False, **template.arguments
        )
    except Exception as error:  # templates are programs, and raise what they like
        raise PolicyError(f"the chat template refuses the messages: {type(error).__name__}: {error}") from error
    _, mark, behind = text.partition(MARK)  # the first is ours: a message may hold another
    if not mark:
        raise PolicyError("the chat template does not write what the assistant said")
    last = tokenizer.decode([context[-1]], skip_special_tokens=False)
    return encoded(behind.removeprefix(last), tokenizer)


def encoded(text: str, tokenizer: Tokenizer) -> list[int]:
    """Without special tokens in front or behind. Raises PolicyError: a tool's answer, for example, may hold half a character."""
    try:
        return tokenizer.encode(text, add_special_tokens=False)
    except Exception as error:  # the tokenizers library raises plain Exceptions
        raise PolicyError(f"the tokenizer cannot encode {text[:200]!r}: {error}") from error


@dataclass(frozen=True, slots=True)
class _Known:
    """A conversation that ends with a turn of the policy's."""

    messages: list[dict[str, Any]]
    tokens: list[int]


class Conversations:
    """Of one trajectory, whose agent says the whole conversation every time it asks."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate):
        self._tokenizer, self._template = tokenizer, template
        self._known: list[_Known] = []

    def context(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[int]:
        """What the policy continues: behind the longest conversation that these messages begin with, or from their first on. Raises PolicyError."""
        said = [_plain(message) for message in messages]
        beginnings = (k for k in self._known if said[: len(k.messages)] == k.messages and len(said) > len(k.messages))
        if known := max(beginnings, key=lambda k: len(k.messages), default=None):
            rest = reply(known.tokens, said[len(known.messages) :], self._tokenizer, self._template)
            return known.tokens + rest
        return self._rendered(said, tools)

    def add(self, messages: Sequence[Message], answer: Message, tokens: list[int]) -> None:
        """The policy answered, and `tokens` are those of the whole conversation."""
        self._known.append(_Known([_plain(message) for message in (*messages, answer)], tokens))

    def _rendered(self, messages: list[dict[str, Any]], tools: Sequence[Mapping[str, Any]]) -> list[int]:
        if not self._tokenizer.chat_template:
            raise PolicyError("the tokenizer in spec.model.path has no chat template")
        how: dict[str, Any] = {"add_generation_prompt": True, "tokenize": False, **self._template.arguments}
        try:
            text = self._tokenizer.apply_chat_template(messages, list(tools) or None, **how)
        except Exception as error:  # templates are programs, and raise what they like
            raise PolicyError(f"the chat template refuses the messages: {type(error).__name__}: {error}") from error
        return encoded(text, self._tokenizer)


def _plain(message: Message) -> dict[str, Any]:
    """Without what clients add, and with content as a text: messages of one meaning are equal. Raises PolicyError."""
    if "role" not in message:
        raise PolicyError("a message has no role")
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    found = {"role": message["role"], "content": content or ""}
    return found | {key: message[key] for key in ("tool_calls", "name", "tool_call_id") if message.get(key)}


class OwnTime:
    """The clock of one trajectory: an agent's own time counts, its waiting for the policy does not. Used by tasks of one event loop."""

    def __init__(self, seconds: float):
        self._left, self._waiting = seconds, 0
        self._limit = asyncio.timeout(None)

    @contextlib.asynccontextmanager
    async def limited(self) -> AsyncIterator[None]:
        """The clock starts here: waiting for a process or a row of the data is not the agent's time. Raises TimeoutError once the time is used up,
        and cancels what is inside."""
        async with self._limit:
            self._limit.reschedule(asyncio.get_running_loop().time() + self._left)
            yield

    @property
    def is_over(self) -> bool:
        return self._limit.expired()

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """The clock stands still."""
        now = asyncio.get_running_loop().time
        with contextlib.suppress(RuntimeError):  # the trajectory has ended, or its time is over
            if not self._waiting and (end := self._limit.when()) is not None:
                self._left = end - now()
                self._limit.reschedule(None)
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1
            with contextlib.suppress(RuntimeError):
                if not self._waiting:
                    self._limit.reschedule(now() + self._left)


Response = tuple[tuple[Segment, ...], bool]
"""What the policy wrote, and whether it was cut off."""
Sample = Callable[[Ints, Sampling, int], Awaitable[Response]]
"""One response to a context, in the turn of this number."""


class Session:
    """Of one agent and one sample of `prompt`."""

    def __init__(
        self,
        spec: AgentSpec,
        prompt: Prompt,
        sampling: Sampling,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        sample: Sample,
    ):
        self.prompt, self.conversations = prompt, Conversations(tokenizer, template)
        self._spec, self._sampling, self._tokenizer, self._template = spec, sampling, tokenizer, template
        self._sample = sample
        self.own_time = OwnTime(spec.timeout_seconds)
        """The agent's, which stands still while the policy generates."""
        self.reply: asyncio.Future[dict[str, Any]] | None = None
        """What the agent's process answers in the end, while it runs the trajectory."""
        self._begun, self._ended_early = 0, False
        self._answers: dict[int, Recorded] = {}
        """By turn."""
        self._conversations: dict[int, list[dict[str, Any]]] = {}
        """Messages that end with a turn, by its number."""

    def anew(self) -> "Session":
        """For the same sample, from its beginning: nothing of this one becomes part of it."""
        return Session(self._spec, self.prompt, self._sampling, self._tokenizer, self._template, self._sample)

    def fail(self, error: Exception) -> None:
        """The rollouts raised it: it ends the trajectory and the attempt, and is not the agent's."""
        if self.reply is not None and not self.reply.done():
            self.reply.set_exception(error)

    def text_of(self, token: int) -> str:
        """Also of a special token."""
        return self._tokenizer.decode([token], skip_special_tokens=False)

    async def answer(self, method: str, arguments: dict[str, Any]) -> Any:
        """To a question of the agent's. Raises PolicyError."""
        if method == "generate":
            return await self._generate(**arguments)
        if method == "converse":
            return await self._converse(**arguments)
        if method == "reply":
            return reply(**arguments, tokenizer=self._tokenizer, template=self._template)
        if method == "sequences":
            return self._sequences(**arguments)
        return encoded(**arguments, tokenizer=self._tokenizer)

    def rollout(self, sequences: Sequence[Sequence[int]], rewards: Sequence[float] = ()) -> Rollout | None:
        """The trajectory of these tokens and branches; None when the policy wrote none of the first sequence. Raises PolicyError.

        Args:
            rewards: of every turn that was asked for, in their order; empty: turns have none of their own
        """
        answers = self._in_order()
        if rewards and len(rewards) != len(answers):
            raise PolicyError(f"there are {len(rewards)} rewards for {len(answers)} turns of the policy")
        rewarded = [replace(a, reward=r) for a, r in zip(answers, rewards, strict=True)] if rewards else answers
        return rollout_of([np.array(tokens, np.int32) for tokens in sequences], rewarded, self._ended_early)

    async def _generate(
        self, context: list[int], max_tokens: int | None, stop: list[str] | None, after: int | None = None
    ) -> dict[str, Any] | None:
        """As Policy.generate, a Turn without its context, with its number. `after`: of the turn that `context` continues."""
        tokens = np.array(context, np.int32)
        return await self._continued(
            tokens if after is None else np.concatenate((self._whole(after), tokens)), max_tokens, stop
        )

    async def _continued(self, context: Ints, max_tokens: int | None, stop: list[str] | None) -> dict[str, Any] | None:
        if not len(context):
            raise PolicyError("nothing to continue: the context has no token")
        room = self._spec.max_tokens - (len(context) - len(self.prompt.tokens))
        longest = min(room, self._sampling.max_tokens, room if max_tokens is None else max_tokens)
        if self._begun >= self._spec.max_turns or longest < 1:
            self._ended_early = True
            return None
        turn, self._begun = self._begun, self._begun + 1
        changes = {"max_tokens": longest} | ({} if stop is None else {"stop": stop})
        sampling = self._sampling.model_copy(update=changes)
        try:
            with self.own_time.stopped():
                segments, truncated = await self._sample(context, sampling, turn)
        except RequestRefusedError as error:
            raise PolicyError(str(error), error.code) from error
        self._answers[turn] = Recorded(context, segments, truncated)
        return self._turn(self._answers[turn]) | {"number": turn}

    def _whole(self, turn: int) -> Ints:
        """The tokens of a turn, with its context."""
        if turn not in self._answers:
            raise PolicyError(f"there is no turn {turn}")
        return self._answers[turn].whole

    async def _converse(
        self, messages: list[dict[str, Any]], max_tokens: int | None, stop: list[str] | None, after: int | None
    ) -> dict[str, Any] | None:
        """As Policy.generate with messages, a Turn with its number; its context without the turn that it continues, if it does. `after`: of the turn
        behind whose conversation `messages` follow."""
        if after is not None:
            before = self._whole(after).tolist()
            messages = [*self._conversations.get(after, ()), *messages]
        context = self.conversations.context(messages, ())
        found = await self._continued(np.array(context, np.int32), max_tokens, stop)
        if found is None:
            return None
        turn = {"role": "assistant", "content": found["text"]}
        self._conversations[found["number"]] = [*messages, turn]
        self.conversations.add(messages, turn, context + found["tokens"])
        continues = after is not None and context[: len(before)] == before
        return {
            "context": context[len(before) :] if continues else context,
            "after": after if continues else None,
            **found,
        }

    def _turn(self, answer: Recorded) -> dict[str, Any]:
        tokens = answer.tokens.tolist()
        return {
            "tokens": tokens,
            "log_probs": [float(p) for s in answer.segments if s.log_probs is not None for p in s.log_probs],
            "policy_steps": [s.policy_step for s in answer.segments for _ in s.tokens],
            "text": self._tokenizer.decode(tokens, skip_special_tokens=True),
            "finish_reason": "length" if answer.truncated else "stop",
        }

    def _in_order(self) -> list[Recorded]:
        return [self._answers[turn] for turn in sorted(self._answers)]

    def _sequences(self, branches: bool) -> list[list[int]]:
        """Tokens of the conversation that the policy continued last, and with `branches` of all others that were given up."""
        answers = self._in_order()
        if not answers:
            raise PolicyError("the policy has not been asked yet")
        found = endings(answers) if branches else [answers[-1].whole]
        return [tokens.tolist() for tokens in found]
