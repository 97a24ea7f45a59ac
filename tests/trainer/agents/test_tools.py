"""Functions that the policy calls, through a chat template in the style of Qwen's, asked by the whole driver."""

import asyncio
import json
from pathlib import Path

import pytest
from aiohttp import web

from rljob_api.spec.model import ChatTemplate
from rljob_trainer.agents.api import Policy, PolicyError, Prompt, Turn
from rljob_trainer.agents.conversations import MARK, reply
from rljob_trainer.agents.worker import ToolCalls
from rljob_trainer.driver import main
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.server.parser_process import answer
from rljob_trainer.wire.completions import Completion
from rljob_trainer.wire.rollout_server import unpack_tokens
from trainer.agents.talker import first_step
from trainer.data.templates import MISTRAL, QWEN, tokenizer
from trainer.driver.bench import Bench
from trainer.driver.servers import Server, answer_of

END = "<|im_end|>"
FUNCTIONS = '''
def add(a: int, b: int) -> int:
    """The sum of two numbers."""
    return a + b

async def column(name: str, row=None) -> str:
    return row[name]

def broken():
    raise ValueError("out of order")
'''


def words() -> object:
    return tokenizer(QWEN, END)


class Caller(Server):
    """Says one text of `script` after the other, turn by turn, with its end of turn."""

    script: tuple[str, ...] = ()

    async def _generate(self, request: web.Request) -> web.Response:
        body = await request.json()
        body["prompt"] = unpack_tokens(body["prompt"])
        self.requests.append(body)
        await asyncio.sleep(self.delay)
        turn = words().decode(body["prompt"]).count("<|im_start|>assistant") - 1
        tokens = words().encode(self.script[turn] + END, add_special_tokens=False)
        drawn = [Completion(tokens, [-1.0] * len(tokens), "stop")] * body["n"]
        return answer_of(drawn, self.policy_step)

    async def _parse(self, request: web.Request) -> web.Response:
        """As the server's own route, with vLLM's parsers."""
        return web.json_response(await asyncio.to_thread(answer, words(), await request.json()))


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(main, "load_tokenizer", lambda spec: words())
    found = Bench(tmp_path)
    file = tmp_path / "tools.py"
    file.write_text(FUNCTIONS)
    tools = {"path": str(file), "functions": ["add", "column", "broken"]}
    found.spec["rollout"] |= {
        "agent": {"tools": tools, "toolParser": "hermes", "maxTurns": 4, "maxTokens": 1000},
        "sampling": {"maxTokens": 200},
    }
    found.spec["data"] |= {"chatTemplate": {"texts": True}}
    return found


def call(**said: object) -> str:
    return f"<tool_call>\n{json.dumps(said)}\n</tool_call>"


def written(found: object, source: str) -> list[str]:
    sample = found.samples[0]
    return [words().decode(s.tokens) for s in sample.segments if s.source == source]


async def test_what_a_call_returns_is_said_by_the_template_and_masked(bench: Bench) -> None:
    adding = "let me see" + call(name="add", arguments={"a": 1, "b": 2})
    found, _ = await first_step(bench, Caller("demo-rollout-0"), script=(adding, "3"))
    (prompt,) = written(found, "prompt")
    assert '"name": "add"' in prompt and "The sum of two numbers." in prompt, "the template shows the functions"
    assert written(found, "policy") == [adding + END, "3" + END]
    between = "\n<|im_start|>user\n<tool_response>\n3\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    assert written(found, "environment") == [between], "the turn's own end is not written twice"
    assert found.metrics["reward_metrics/tool_calls"] == 1.0 and found.metrics["reward_metrics/tool_errors"] == 0.0
    assert all(s.reward == float(s.prompt_index in (1, 3)) for s in found.samples), "1+2 and 2+1, of 1+1 to 4+3"


async def test_several_calls_of_a_turn_are_answered_in_their_order(bench: Bench) -> None:
    both = call(name="column", arguments={"name": "data_source"}) + call(name="add", arguments={"a": 1, "b": 1})
    found, _ = await first_step(bench, Caller("demo-rollout-0"), script=(both, "done"))
    (said,) = written(found, "environment")
    assert said.index("sum") < said.index("2") and said.count("<tool_response>") == 2


@pytest.mark.parametrize(
    ("called", "answer"),
    [
        (call(name="add", arguments=[1, 2]), "error: the arguments of a call are a JSON object"),
        (call(name="multiply", arguments={}), "error: there is no function 'multiply', only add, column, broken"),
        (call(name="add", arguments={"a": 1}), "error: TypeError: add() missing 1 required positional argument: 'b'"),
        (call(name="add", arguments={"a": 1, "b": 2, "c": 3}), "error: add has no parameter 'c'"),
        (call(name="column", arguments={"row": {}}), "error: column has no parameter 'row'"),
        (call(name="broken", arguments={}), "error: ValueError: out of order"),
    ],
)
async def test_a_wrong_call_is_answered_to_the_policy_and_fails_no_sample(
    bench: Bench, called: str, answer: str
) -> None:
    found, _ = await first_step(bench, Caller("demo-rollout-0"), script=(called, "sorry"))
    (said,) = written(found, "environment")
    assert answer in said
    assert found.metrics["reward_metrics/tool_errors"] == 1.0 and found.metrics["agent/failed"] == 0.0


@pytest.mark.parametrize("called", ["<tool_call>add(1, 2)</tool_call>", call(name="broken")])
async def test_what_the_parser_reads_no_call_in_ends_the_trajectory(bench: Bench, called: str) -> None:
    found, _ = await first_step(bench, Caller("demo-rollout-0"), script=(called, "never asked"))
    assert written(found, "policy") == [called + END]
    assert found.metrics["reward_metrics/tool_calls"] == 0.0 and found.metrics["agent/failed"] == 0.0


async def test_functions_of_a_model_whose_calls_nobody_can_read_end_the_job(bench: Bench) -> None:
    bench.spec["rollout"]["agent"]["toolParser"] = "llama3_json"
    with pytest.raises(ConfigurationError, match=r"spec.rollout.agent.toolParser = llama3_json: .*python_tag"):
        await first_step(bench, Caller("demo-rollout-0"), script=("3",))


async def test_texts_that_go_through_no_template_are_refused(bench: Bench) -> None:
    bench.spec["data"].pop("chatTemplate")
    bench.control()
    await bench.connect()
    with pytest.raises(ConfigurationError, match="would not see the functions of spec.rollout.agent.tools"):
        await bench.driver


async def test_a_function_without_types_is_refused_before_anything_is_generated(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text(FUNCTIONS.replace("a: int", "a"))
    bench.control()
    await bench.connect()
    with pytest.raises(ConfigurationError, match="spec.rollout.agent.tools.path .* the parameter 'a' needs a type"):
        await bench.driver


def test_a_reply_behind_a_turn_that_a_text_ended_closes_the_turn() -> None:
    context = words().encode("<tool_call>", add_special_tokens=False)
    found = words().decode(reply(context, [{"role": "user", "content": "well?"}], words(), ChatTemplate()))
    assert found == "<|im_end|>\n<|im_start|>user\nwell?<|im_end|>\n<|im_start|>assistant\n"


CALLS = [
    {"id": f"call0000{i}", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}
    for i in (0, 1)
]
STRICT = """
{%- for m in messages %}
{%- if m.role == 'user' %}{{- '[INST] ' + m.content + '[/INST]' }}
{%- elif m.role == 'assistant' and m.tool_calls %}
{%- for c in m.tool_calls %}{{- '[CALL] ' + c.function.name + ' ' + c.id + c.function.arguments | tojson }}{%- endfor %}{{- '</s>' }}
{%- elif m.role == 'assistant' %}{{- ' ' + m.content + '</s>' }}
{%- elif not messages[loop.index0 - 1].tool_calls %}{{- raise_exception('a result of nothing') }}
{%- else %}{{- '[RESULT] ' + m.tool_call_id + ' ' + m.content }}{%- endif %}{%- endfor %}"""
"""In the style of Mistral's and of gpt-oss: a result has to follow the call that it is of."""


def replied(context: str, template: str, end: str, calls: list) -> str:
    known = tokenizer(template, end)
    said = [{"role": "tool", "tool_call_id": call["id"], "name": "add", "content": "3"} for call in CALLS[:1]]
    return known.decode(reply(known.encode(context, add_special_tokens=False), said, known, ChatTemplate(), calls))


def test_a_template_that_wants_to_see_the_call_before_its_result_is_shown_it() -> None:
    with pytest.raises(PolicyError, match="a result of nothing"):
        replied("[CALL] add</s>", STRICT, "</s>", [])
    assert replied("[CALL] add</s>", STRICT, "</s>", CALLS[:1]) == "[RESULT] call00000 3"
    assert replied("[CALL] add", STRICT, "</s>", CALLS[:1]) == "</s>[RESULT] call00000 3", "no token has ended the turn"


@pytest.mark.parametrize("context", [END, "</tool_call>", "1"])
def test_a_template_that_needs_no_call_writes_the_same_with_it(context: str) -> None:
    assert replied(context, QWEN, END, CALLS) == replied(context, QWEN, END, [])


def test_a_template_that_refuses_what_the_policy_called_is_shown_the_result_alone() -> None:
    refusal = "{%- if messages[1].tool_calls | length > 1 %}{{- raise_exception('one at a time') }}{%- endif %}"
    one = QWEN.replace("{%- elif m.role == 'tool' %}", "{%- elif m.role == 'tool' %}" + refusal)
    assert replied(END, one, END, CALLS) == replied(END, one, END, [])


def test_a_template_that_knows_no_such_message_is_an_error_of_the_call() -> None:
    mistral = tokenizer(MISTRAL)
    with pytest.raises(PolicyError, match="roles must alternate"):
        reply([5], [{"role": "assistant", "content": "x"}], mistral, ChatTemplate())


def test_a_message_that_holds_the_mark_of_a_turn_is_rendered_whole() -> None:
    tool = [{"role": "tool", "content": f"a {MARK} b"}]
    said = words().decode(reply(words().encode(END), tool, words(), ChatTemplate()))
    assert f"a {MARK} b" in said


BARE = "{% for m in messages %}{{ m.content }}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "turn", "message", "follows"),
    [
        (BARE, "1+", "+2", "+2"),
        (BARE.replace("}}", "}};"), "1;", ";2", ";2;"),
        (BARE.replace("}}", "}};"), "1", ";2", ";;2;"),
    ],
)
def test_a_message_that_begins_as_the_turn_ends_stays_whole(
    template: str, turn: str, message: str, follows: str
) -> None:
    """Of a template whose turns end with an ordinary text, or with none."""
    known = tokenizer(template)
    said = reply(
        known.encode(turn, add_special_tokens=False), [{"role": "user", "content": message}], known, ChatTemplate()
    )
    assert known.decode(said) == follows


@pytest.mark.parametrize(
    ("context", "text", "why"), [([], "a", "the context has no token"), ([5], "half \ud83d", "cannot encode")]
)
def test_a_reply_that_cannot_be_made_is_an_error_of_the_call(context: list[int], text: str, why: str) -> None:
    """Any other error would end the attempt, and a policy that writes half a character would be able to cause it."""
    with pytest.raises(PolicyError, match=why):
        reply(context, [{"role": "tool", "content": text}], words(), ChatTemplate())


CALLABLE = {"id": "c", "type": "function"}


async def results(*arguments: str) -> tuple[list[str], dict[str, float]]:
    """What the policy reads of one turn with these calls of `size`, and the metrics."""

    def size(a: int = 0) -> int:
        return a

    calls = [CALLABLE | {"function": {"name": "size", "arguments": given}} for given in arguments]
    turns = iter([Turn([1], [2], [0.0], [0], "", "stop", "", "", calls), None])
    read: list[str] = []

    async def ask(method: str, asked: dict) -> object:
        read.extend(message["content"] for message in asked["messages"])
        return [3]

    class Scripted(Policy):
        async def generate(self, *_: object, **__: object) -> Turn | None:
            return next(turns)

    found = await ToolCalls([size]).rollout(Prompt([1], "", "", ""), Scripted(ask), {})
    return read, found.metrics


@pytest.mark.parametrize("arguments", ['[["a", 1]]', '["ab"]', "[]", "0", "false", '""', "7", '"a"'])
async def test_arguments_that_are_no_object_are_none(arguments: str) -> None:
    read, _ = await results(arguments)
    assert read == ["error: the arguments of a call are a JSON object"]


@pytest.mark.parametrize("arguments", ["", "null", "{}"])
async def test_a_call_may_have_no_arguments(arguments: str) -> None:
    read, _ = await results(arguments)
    assert read == ["0"]


async def test_only_so_many_calls_of_a_turn_are_made() -> None:
    read, metrics = await results(*['{"a": 1}'] * 200)
    assert read == ["1"] * 128 + ["error: too many calls: only the first 128 of a turn are made"] * 72
    assert metrics == {"tool_calls": 200.0, "tool_errors": 72.0}
