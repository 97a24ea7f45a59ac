"""An episode that answers the policy turn by turn, whoever answers: a service that the driver asks, or a library in the agent's process."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Protocol, Self

from pydantic import BaseModel, ConfigDict, FiniteFloat, StringConstraints, ValidationError, model_validator

from rljob_api.metrics import OWN_NAME
from rljob_trainer.agents.api import Message, Policy, Trajectory, Turn

MOST_SAID = 2**20
"""Characters of one answer of an environment: more than any context holds."""
MetricName = Annotated[str, StringConstraints(pattern=f"^{OWN_NAME.pattern}$")]


class Nonsense(Exception):
    """An environment said what it may not. Completes "the environment ..."."""


class Observation(BaseModel):
    """What an environment answers at the beginning and to a turn."""

    model_config = ConfigDict(extra="forbid")

    text: str = ""
    """Tokenised as it is, behind the context."""
    messages: list[dict[str, Any]] = []
    """Written by the chat template, behind the policy's turn. At the beginning: the conversation, in place of the row's prompt."""
    reward: FiniteFloat = 0.0
    done: bool = False
    metrics: dict[MetricName, FiniteFloat] = {}

    @model_validator(mode="after")
    def _one_way_to_say_it(self) -> Self:
        if self.text and self.messages:
            raise ValueError("text and messages exclude each other")
        said = len(self.text) + sum(len(str(message)) for message in self.messages)
        if said > MOST_SAID:
            raise ValueError(f"{said} characters, and at most {MOST_SAID} are read")
        return self


class Episode(Protocol):
    """Both methods raise Nonsense for an answer that `observed` does not take."""

    async def reset(self) -> Observation: ...

    async def step(self, number: int, turn: Turn) -> Observation:
        """`number`: of the turn, from 0."""
        ...


def observed(answer: Any, asked: str) -> Observation:
    """Raises Nonsense, which names the field. `asked`: for messages, `reset` or `step`."""
    try:
        return Observation.model_validate(answer)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the answer"
        raise Nonsense(f"answered to {asked}: {place}: {first['msg']}") from error


async def played(policy: Policy, prompt: Sequence[int], episode: Episode) -> Trajectory:
    """Turn after turn, until the environment says that it is over or the policy may not go on. Raises Nonsense, PolicyError, and what the episode
    raises."""
    first, context = await episode.reset(), list(prompt)
    opening: Sequence[int] | Sequence[Message] = first.messages or context + await _said(policy, context, first)
    seen = list[Observation]()
    while turn := await policy.generate(context if seen else opening):
        context = turn.whole
        seen.append(await episode.step(len(seen), turn))
        if seen[-1].done:
            break
        context += await _said(policy, context, seen[-1])
    metrics = {key: value for observation in seen for key, value in observation.metrics.items()}
    return Trajectory(context, metrics=metrics, rewards=[o.reward for o in seen])


async def _said(policy: Policy, context: list[int], observation: Observation) -> list[int]:
    if observation.messages:
        return await policy.reply(context, observation.messages)
    return await policy.encode(observation.text) if observation.text else []


def plain(value: Any) -> Any:
    """What JSON can say of a row: bytes are left out, also those of images within it; everything else that it does not know becomes a text."""
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items() if not isinstance(inner, bytes)}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value if not isinstance(inner, bytes)]
    return value if isinstance(value, (str, int, float, type(None))) else str(value)
