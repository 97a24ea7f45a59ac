"""The driver's side of one trajectory: it answers the agent, and keeps what the policy generated."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rljob_api.spec.agent import AgentSpec
from rljob_api.spec.common import Sampling
from rljob_api.spec.model import ChatTemplate
from rljob_trainer.agents.api import PolicyError, message_of
from rljob_trainer.agents.claims import QUESTIONS, Claims
from rljob_trainer.agents.conversations import Conversations, ResponseParser, encoded, reply, special
from rljob_trainer.agents.messages import require_functions
from rljob_trainer.agents.recording import Recorded, Rollout, endings, rollout_of
from rljob_trainer.data.prompts import Prompt
from rljob_trainer.data.tokenizer import Tokenizer
from rljob_trainer.sandboxes.sandbox import SandboxError
from rljob_trainer.wire.rollout_client import RequestRefusedError
from rljob_trainer.wire.rollout_server import Parsed, ToolCall
from rljob_trainer.wire.trajectory import Ints, Segment


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
ToolList = Sequence[Mapping[str, Any]]
"""JSON schemas in OpenAI's form."""
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
        parser: ResponseParser,
    ):
        self.prompt, self.conversations = prompt, Conversations(tokenizer, template)
        self._spec, self._sampling, self._tokenizer, self._template = spec, sampling, tokenizer, template
        self._sample, self._parser = sample, parser
        self.own_time = OwnTime(spec.timeout_seconds)
        """The agent's, which stands still while the policy generates."""
        self.reply: asyncio.Future[dict[str, Any]] | None = None
        """What the agent's process answers in the end, while it runs the trajectory."""
        self.claims = Claims({})
        """Its sandboxes."""
        self._begun, self._ended_early = 0, False
        self._answers: dict[int, Recorded] = {}
        """By turn."""
        self._called: dict[int, list[ToolCall]] = {}
        """What a turn calls, by its number: a reply to it is written by the template that sees the calls."""
        self._messages: dict[int, list[dict[str, Any]]] = {}
        """Messages that end with a turn, by its number."""

    def anew(self) -> "Session":
        """For the same sample, from its beginning: nothing of this one becomes part of it."""
        return Session(
            self._spec, self.prompt, self._sampling, self._tokenizer, self._template, self._sample, self._parser
        )

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
            return self._reply(**arguments)
        if method == "sequences":
            return self._sequences(**arguments)
        if method in QUESTIONS:
            return await self._of_sandboxes(method, arguments)
        return encoded(**arguments, tokenizer=self._tokenizer)

    async def _of_sandboxes(self, method: str, arguments: dict[str, Any]) -> Any:
        """Waiting for the first one is not the agent's time. While it has one, others may wait for that one, so that the clock has to end it.

        Nothing that is wrong with a sandbox, or with what is said of it, is the rollouts' fault.
        """
        is_first = method == "claim" and not self.claims.in_use
        clock = self.own_time.stopped() if is_first else contextlib.nullcontext()
        try:
            with clock:
                return await QUESTIONS[method](self.claims, **arguments)
        except SandboxError as error:
            raise PolicyError(str(error)) from error
        except (ValueError, TypeError, KeyError) as error:
            raise PolicyError(f"{method}: {type(error).__name__}: {error}") from error

    def _reply(self, context: list[int], messages: list[dict[str, Any]], after: int | None) -> list[int]:
        """`after`: of the turn that is replied to."""
        calls = self._called.get(after, ()) if after is not None else ()
        return reply(context, messages, self._tokenizer, self._template, calls)

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
        self,
        context: list[int],
        max_tokens: int | None,
        stop: list[str] | None,
        tools: ToolList = (),
        after: int | None = None,
    ) -> dict[str, Any] | None:
        """As Policy.generate, a Turn without its context, with its number. `after`: of the turn that `context` continues."""
        tokens = np.array(context, np.int32)
        return await self._continued(
            tokens if after is None else np.concatenate((self._whole(after), tokens)), max_tokens, stop, tools
        )

    async def _continued(
        self, context: Ints, max_tokens: int | None, stop: list[str] | None, tools: ToolList
    ) -> dict[str, Any] | None:
        if not len(context):
            raise PolicyError("nothing to continue: the context has no token")
        require_functions(tools)
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
                answer = Recorded(context, *await self._sample(context, sampling, turn))
                said = await self._said(answer, sampling.stop, tools)
        except RequestRefusedError as error:
            raise PolicyError(str(error), error.code) from error
        self._answers[turn], self._called[turn] = answer, said["tool_calls"]
        return said | {"number": turn}

    def _whole(self, turn: int) -> Ints:
        """The tokens of a turn, with its context."""
        if turn not in self._answers:
            raise PolicyError(f"there is no turn {turn}")
        return self._answers[turn].whole

    async def _converse(
        self,
        messages: list[dict[str, Any]],
        max_tokens: int | None,
        stop: list[str] | None,
        tools: ToolList,
        after: int | None,
    ) -> dict[str, Any] | None:
        """As Policy.generate with messages, a Turn with its number; its context without the turn that it continues, if it does. `after`: of the turn
        behind whose conversation `messages` follow."""
        if after is not None:
            before = self._whole(after).tolist()
            messages = [*self._messages.get(after, ()), *messages]
        context = self.conversations.context(messages, tools)
        generated = await self._continued(np.array(context, np.int32), max_tokens, stop, tools)
        if generated is None:
            return None
        turn = message_of(generated)
        self._messages[generated["number"]] = [*messages, turn]
        self.conversations.add(messages, turn, context + generated["tokens"])
        continues = after is not None and context[: len(before)] == before
        return {
            "context": context[len(before) :] if continues else context,
            "after": after if continues else None,
            **generated,
        }

    async def _said(self, answer: Recorded, stop: Sequence[str], tools: ToolList) -> dict[str, Any]:
        """A Turn without its context."""
        tokens = answer.tokens.tolist()
        text = self._tokenizer.decode(tokens, skip_special_tokens=True)
        ended = self._is_ended(tokens, stop) and not answer.truncated
        read = await self._parser.parsed(answer.context, tokens, ended, tools) or Parsed(text)
        return {
            "tokens": tokens,
            "log_probs": [float(p) for s in answer.segments if s.log_probs is not None for p in s.log_probs],
            "policy_steps": [s.policy_step for s in answer.segments for _ in s.tokens],
            "text": text,
            "finish_reason": "length" if answer.truncated else "stop",
            "content": read.content,
            "reasoning": read.reasoning,
            "tool_calls": list(read.tool_calls),
        }

    def _is_ended(self, tokens: list[int], stop: Sequence[str]) -> bool:
        """The last token ended the turn, and not a text of `stop`."""
        if not tokens or not special(tokens[-1], self._tokenizer):
            return False
        written = self._tokenizer.decode(tokens, skip_special_tokens=False) if stop else ""
        return not any(written.endswith(text) for text in stop)

    def _in_order(self) -> list[Recorded]:
        return [self._answers[turn] for turn in sorted(self._answers)]

    def _sequences(self, branches: bool) -> list[list[int]]:
        """Tokens of the conversation that the policy continued last, and with `branches` of all others that were given up."""
        answers = self._in_order()
        if not answers:
            raise PolicyError("the policy has not been asked yet")
        sequences = endings(answers) if branches else [answers[-1].whole]
        return [tokens.tolist() for tokens in sequences]
