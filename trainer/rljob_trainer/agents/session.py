"""The driver's side of one trajectory: it answers the agent, and keeps what the policy generated."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np

from rljob_api.spec.agent import AgentSpec
from rljob_api.spec.common import Sampling
from rljob_api.spec.model import ChatTemplate
from rljob_trainer.agents.answers import AnsweredTurn, Answers
from rljob_trainer.agents.api import Message, PolicyError, message_of
from rljob_trainer.agents.claims import QUESTIONS, Claims
from rljob_trainer.agents.conversations import Conversations, ResponseParser, encoded, reply, special
from rljob_trainer.agents.messages import require_functions, sources_of
from rljob_trainer.agents.own_time import OwnTime
from rljob_trainer.agents.recording import Recorded, Rollout
from rljob_trainer.agents.shown_images import ShownImages
from rljob_trainer.data.prompts import Prompt
from rljob_trainer.data.tokenizer import Tokenizer
from rljob_trainer.sandboxes.sandbox import SandboxError
from rljob_trainer.wire.rollout_client import RequestRefusedError
from rljob_trainer.wire.rollout_server import Parsed
from rljob_trainer.wire.trajectory import Ints, Segment

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
        shown: ShownImages | None = None,
    ):
        """`shown`: with the images of the prompt, where the policy reads any."""
        self._shown = shown or ShownImages()
        self.prompt, self.conversations = prompt, Conversations(tokenizer, template, self._shown)
        self._spec, self._sampling, self._tokenizer, self._template = spec, sampling, tokenizer, template
        self._sample, self._parser = sample, parser
        self.own_time = OwnTime(spec.timeout_seconds)
        """The agent's, which stands still while the policy generates."""
        self.reply: asyncio.Future[dict[str, Any]] | None = None
        """What the agent's process answers in the end, while it runs the trajectory."""
        self.claims = Claims({})
        """Its sandboxes."""
        self.resumed, self.run_again = 0, 0
        """How often it has continued, and begun from its first turn, since its process was lost."""
        self.is_called = False
        """The agent was called with it: only then something of it is lost with a process."""
        self._answers, self._numbers = Answers(), count()
        self._refused = list[int]()
        """Numbers of turns that the rollouts refused."""
        self._begun, self._ended_early = 0, False
        """Turns that count for maxTurns, and whether there was no room for another."""

    def anew(self) -> "Session":
        """For the same sample in another process, from its beginning: nothing of this one becomes part of it."""
        self._shown.forget()
        session = self._successor()
        session.run_again += self.is_called
        return session

    def continued(self) -> "Session":
        """For the same sample in another process, behind the last turn that was answered. What was asked then, or refused, is asked again under the
        same number and so with the same seed, if the agent asks for one turn after another. No more of the limits is used up than was there."""
        if not len(self._answers):
            return self.anew()
        session = self._successor()
        session.resumed += self.is_called
        session._answers, session._ended_early = self._answers.copy(), self._ended_early
        session._refused = [number for number in self._refused if number < self._answers.last]
        session._begun = len(self._answers) + len(session._refused)
        session._numbers = count(self._answers.last + 1)
        session.conversations = self.conversations.copy()
        last = self._answers[self._answers.last]
        if last.conversation:  # its process may have been lost before this was known
            *before, answer = last.conversation
            session.conversations.add(before, answer, last.recorded.whole.tolist())
        return session

    def _successor(self) -> "Session":
        session = Session(
            self._spec,
            self.prompt,
            self._sampling,
            self._tokenizer,
            self._template,
            self._sample,
            self._parser,
            self._shown,
        )
        session.resumed, session.run_again = self.resumed, self.run_again
        return session

    def history(self) -> dict[str, Any]:
        """What an agent that continues gets (history.py): turns with as much of their contexts as does not repeat the turn before, and the
        conversation that the last one ends. May take long."""
        turns, before = [], np.zeros(0, np.int32)
        for _, answered in self._answers:
            context = answered.recorded.context
            continues = bool(len(before)) and np.array_equal(context[: len(before)], before)
            new = context[len(before) :] if continues else context
            turn = self._turn(answered.recorded, answered.parsed)
            turns.append(turn | {"context": new.tolist(), "continues": continues})
            before = answered.recorded.whole
        number = self._answers.last
        return {"turns": turns, "number": number, "messages": self._answers.conversation(number)}

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
            return await self._reply(**arguments)
        if method == "sequences":
            return self._answers.sequences(**arguments)
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

    async def context(self, messages: Sequence[Message], tools: ToolList) -> list[int]:
        """What the policy continues where an agent says these messages. Raises PolicyError."""
        await self._shown.read(messages)
        return self.conversations.context(messages, tools)

    async def _reply(self, context: list[int], messages: list[dict[str, Any]], after: int | None) -> list[int]:
        """`after`: of the turn that is replied to."""
        await self._shown.read(messages)
        calls = self._answers.calls(after) if after is not None else ()
        said = reply(context, messages, self._tokenizer, self._template, calls)
        if not sources_of(messages):
            return said
        if after is None:
            raise PolicyError("an image can be shown behind the last turn only")
        return self._shown.expanded(self._answers.whole(after).tolist(), said, messages)

    def rollout(self, sequences: Sequence[Sequence[int]], rewards: Sequence[float] = ()) -> Rollout | None:
        """The trajectory of these tokens and branches; None when the policy wrote none of the first sequence. Raises PolicyError.

        Args:
            rewards: of every turn that was asked for, in their order; empty: turns have none of their own
        """
        return self._answers.rollout(sequences, rewards, self._ended_early)

    async def _generate(
        self,
        context: list[int],
        max_tokens: int | None,
        stop: list[str] | None,
        tools: ToolList = (),
        after: int | None = None,
        messages: list[dict[str, Any]] | None = None,
    ) -> dict[str, Any] | None:
        """As Policy.generate, a Turn without its context, with its number. `after`: of the turn that `context` continues. `messages`: that were
        rendered as `context`."""
        tokens = np.array(context, np.int32)
        whole = tokens if after is None else np.concatenate((self._answers.whole(after), tokens))
        return await self._asked(whole, max_tokens, stop, tools, messages)

    async def _asked(
        self,
        context: Ints,
        max_tokens: int | None,
        stop: list[str] | None,
        tools: ToolList,
        messages: list[dict[str, Any]] | None,
    ) -> dict[str, Any] | None:
        if not len(context):
            raise PolicyError("nothing to continue: the context has no token")
        require_functions(tools)
        room = self._spec.max_tokens - (len(context) - len(self.prompt.tokens))
        longest = min(room, self._sampling.max_tokens, room if max_tokens is None else max_tokens)
        if self._begun >= self._spec.max_turns or longest < 1:
            self._ended_early = True
            return None
        number, self._begun = next(self._numbers), self._begun + 1
        changes = {"max_tokens": longest} | ({} if stop is None else {"stop": stop})
        sampling = self._sampling.model_copy(update=changes)
        try:
            with self.own_time.stopped():
                recorded = Recorded(context, *await self._sample(context, sampling, number))
                parsed = await self._parsed(recorded, sampling.stop, tools)
        except RequestRefusedError as error:
            self._refused.append(number)
            raise PolicyError(str(error), error.code) from error
        turn = self._turn(recorded, parsed)
        conversation = [] if messages is None else [*messages, message_of(turn)]
        self._answers.add(number, AnsweredTurn(recorded, parsed, conversation))
        return turn | {"number": number}

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
            before = self._answers.whole(after).tolist()
            messages = [*self._answers.conversation(after), *messages]
        context = await self.context(messages, tools)
        generated = await self._asked(np.array(context, np.int32), max_tokens, stop, tools, messages)
        if generated is None:
            return None
        self.conversations.add(messages, message_of(generated), context + generated["tokens"])
        continues = after is not None and context[: len(before)] == before
        return {
            "context": context[len(before) :] if continues else context,
            "after": after if continues else None,
            **generated,
        }

    async def _parsed(self, answer: Recorded, stop: Sequence[str], tools: ToolList) -> Parsed | None:
        tokens = answer.tokens.tolist()
        ended = self._is_ended(tokens, stop) and not answer.truncated
        return await self._parser.parsed(answer.context, tokens, ended, tools)

    def _turn(self, answer: Recorded, parsed: Parsed | None) -> dict[str, Any]:
        """A Turn without its context."""
        tokens = answer.tokens.tolist()
        text = self._tokenizer.decode(tokens, skip_special_tokens=True)
        read = parsed or Parsed(text)
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
