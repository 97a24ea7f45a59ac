"""What is taken as it stands and may be meant otherwise: columns that nothing reads, texts that go through no chat template, texts that already went
through it, turns that an agent does not keep, and held-out rows that are trained on.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rljob_api.spec import RLJobSpec
from rljob_trainer.data.conversations import chat_in
from rljob_trainer.data.files import Record, find
from rljob_trainer.data.prompts import PromptSet
from rljob_trainer.data.tokenizer import Tokenizer, turn_end
from rljob_trainer.local.rehearsal.rows import TriedFile
from rljob_trainer.wire.trajectory import Trajectory

LEFT_OUT = "agent/tokens_left_out"
TRAINED = "spec.data.train"


class Watched(Mapping[str, Any]):
    """A row that remembers which of its columns were read."""

    def __init__(self, record: Record):
        self._record = record
        self.read: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        value = self._record[key]
        self.read.add(key)
        return value

    def __contains__(self, key: object) -> bool:
        return key in self._record

    def __iter__(self) -> Iterator[str]:
        return iter(self._record)

    def __len__(self) -> int:
        return len(self._record)


def is_plain(record: Record, spec: RLJobSpec) -> bool:
    """Whether a prompt of `rl` goes through no chat template. An agent may make a conversation of it."""
    prompt, texts = find(spec.data.prompt_key, record), spec.data.chat_template.texts
    return isinstance(prompt, str) and not chat_in(prompt) and not texts and not spec.rollout.agent


def notes_of_row(record: Record, path: str, plain: bool, spec: RLJobSpec, tokenizer: Tokenizer) -> Iterator[str]:
    """Of the first row of a file, as it holds it. `plain`: its texts go through no chat template."""
    end = turn_end(spec, tokenizer)
    if not tokenizer.chat_template:
        return
    if plain:
        yield f"{path}: texts are taken as they are, although the model has a chat template: for chats set spec.data.chatTemplate.texts: true"
    elif end and end[0] in str(dict(record)):
        yield (
            f"{path}: a text that the chat template is given has {end[0]!r} in it, which the template itself writes behind each turn: "
            "if it is already rendered, set spec.data.chatTemplate.texts: false, else leave the token out"
        )


def notes_of_samples(file: TriedFile, spec: RLJobSpec) -> Iterator[str]:
    """Of what an agent made of the scripted policy's turns."""
    samples = [(row, outcome) for row in file.rows for _, outcome in row.samples]
    for row, outcome in samples:
        if outcome.agent.get(LEFT_OUT):
            yield (
                f"spec.rollout.agent: what the policy says is left out of the trajectory and not learnt ({outcome.agent[LEFT_OUT]:.0f} tokens of "
                f"{file.place.path} row {row.prompt.index + 1}): if that is not meant, continue turn.whole, or repeat turn.message, and not its text"
            )
            break
    rewards = [o.result.reward for _, o in samples if isinstance(o.result, Trajectory)]
    if not spec.rewards and rewards and not any(rewards):
        yield "spec.rewards is empty, and the agent gives no reward: return Trajectory(..., reward=...), or add an entry"


def held_out_again(place: str, prompts: PromptSet, trained: set[tuple[str, str]]) -> Iterator[str]:
    """`trained`: texts and answers of the rows that are trained on."""
    again = sum(pair in trained for pair in pairs(prompts))
    if again:
        yield f"{place}: {again} of {len(prompts)} rows are in spec.data.train, too, so that their rewards say nothing of new prompts"


def pairs(prompts: PromptSet) -> Iterable[tuple[str, str]]:
    """Text and answer of each row."""
    return ((prompts[i].text, prompts[i].answer) for i in range(len(prompts)))
