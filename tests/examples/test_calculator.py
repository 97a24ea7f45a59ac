"""The calculator's starting point: what its warm-up teaches is what agents, tools and the endpoint make of a trajectory."""

import json
from pathlib import Path
from types import ModuleType

import pyarrow.parquet as pq
import pytest

from rljob_api.families import parsers_of
from rljob_api.spec.model import ChatTemplate
from rljob_trainer.agents.conversations import reply
from rljob_trainer.server.parser_process import parsed
from rljob_trainer.wire.rollout_server import ParseRequest
from script import loaded

SCRIPT = Path(__file__).parents[2] / "examples" / "calculator" / "prepare.py"
PROBLEM = (37, 48, 12)
ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}


@pytest.fixture(scope="module")
def prepare() -> ModuleType:
    return loaded(SCRIPT)


def test_a_call_of_the_agents_is_written_as_it_reads_it(prepare: ModuleType) -> None:
    assert prepare.called(PROBLEM, prepare.PLAIN) == "add(37,48)85;add(85,12)97;97"
    ids = prepare.make_tokenizer(prepare.PLAIN).encode("add(37,48)85;")
    assert len(ids) == 10, "one token for add( and one for each character"


def test_the_template_writes_results_of_tools_as_the_warm_up_does(prepare: ModuleType) -> None:
    tokenizer, calls = prepare.make_tokenizer(prepare.TOOLS), prepare.TOOLS
    context = tokenizer.apply_chat_template([{"role": "user", "content": "37+48+12="}], add_generation_prompt=True)
    context = list(context["input_ids"]) if not isinstance(context, list) else context
    for call, result in ((calls(37, 48), "85"), (calls(85, 12), "97")):
        context += tokenizer.encode(call)
        context += reply(context, [{"role": "tool", "content": result}], tokenizer, ChatTemplate())
    assert tokenizer.decode(context) == "37+48+12=" + prepare.called(PROBLEM, calls).removesuffix("97")
    assert context == tokenizer.encode("37+48+12=" + prepare.called(PROBLEM, calls).removesuffix("97"))


def test_a_call_in_the_format_of_tools_is_read_as_one_and_takes_few_tokens(prepare: ModuleType) -> None:
    tokenizer, call = prepare.make_tokenizer(prepare.TOOLS), prepare.TOOLS(37, 48)
    tokens = tokenizer.encode(call)
    assert len(tokens) == 8
    parsers = parsers_of(None, None, {"model_type": "qwen2"})
    (read,) = parsed(tokenizer, ParseRequest([1], tokens, True, parsers, [ADD])).tool_calls
    assert (read["function"]["name"], json.loads(read["function"]["arguments"])) == ("add", {"a": 37, "b": 48})


def test_held_out_problems_are_not_trained_on(prepare: ModuleType, tmp_path: Path) -> None:
    prepare.write_data(tmp_path, prepare.TOOLS, seed=0)
    train, held_out = (
        set(pq.read_table(tmp_path / f"{n}.parquet")["prompt"].to_pylist()) for n in ("train", "heldout")
    )
    assert len(train) == prepare.PROBLEMS and len(held_out) == prepare.HELD_OUT and not train & held_out
