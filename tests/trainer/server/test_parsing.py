"""Golden transcripts: what models of each family write, and the calls, reasoning and content that vLLM's parsers read in it.

The tokenizers are tiny, with the special tokens of their families; those of gpt-oss are the ones that its parser brings along.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from openai_harmony import HarmonyEncodingName, load_harmony_encoding
from starlette.applications import Starlette
from starlette.routing import Route
from starlette.testclient import TestClient
from tokenizers import AddedToken

from rljob_api.families import FAMILIES, ParserNames
from rljob_trainer.server import parser_process
from rljob_trainer.server.front import parse
from rljob_trainer.server.parser_process import answer, parsed
from rljob_trainer.wire.rollout_server import Parsed, ParseRequest, ParserUnusableError, UnreadError
from rljob_trainer.wire.weights.protocol import PARSE
from trainer.data import templates

ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "The sum of two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "number"}, "unit": {"type": "string"}},
            "required": ["a", "b"],
        },
    },
}
END = "<|im_end|>"
THINK = ("<think>", "</think>")
TOOL_CALL = ("<tool_call>", "</tool_call>")
DEEPSEEK = ("calls▁begin", "call▁begin", "sep", "call▁end", "calls▁end")
DEEPSEEK_TOKENS = tuple(f"<｜tool▁{name}｜>" for name in DEEPSEEK)
CALLS, CALL, SEP, CALL_END, CALLS_END = DEEPSEEK_TOKENS
KIMI = tuple(
    f"<|tool_{name}|>" for name in ("calls_section_begin", "call_begin", "call_argument_begin", "call_end", "calls_section_end")
)  # fmt: skip


@dataclass(frozen=True)
class Transcript:
    """What a model wrote, and what is read in it."""

    tools: str
    text: str
    content: str = ""
    calls: tuple[tuple[str, Any], ...] = (("add", {"a": 1, "b": 2.5, "unit": "1"}),)
    """Names, and arguments as JSON says them."""
    reasoning_parser: str = ""
    reasoning: str = ""
    special: tuple[str, ...] = ()
    """Tokens of the family."""


ARGUMENTS = '{"a": 1, "b": 2.5, "unit": "1"}'
VALUES = {"a": "1", "b": "2.5", "unit": "1"}
PARAMETERS = "".join(f"<parameter={name}>\n{value}\n</parameter>\n" for name, value in VALUES.items())
XML = f"<function=add>\n{PARAMETERS}</function>"
INVOKED = "".join(f'<parameter name="{name}">{value}</parameter>\n' for name, value in VALUES.items())
INVOKED = f'<invoke name="add">\n{INVOKED}</invoke>\n'
MINIMAX_TOKENS = ("<minimax:tool_call>", "</minimax:tool_call>")
PAIRS = "".join(f"<arg_key>{name}</arg_key>\n<arg_value>{value}</arg_value>\n" for name, value in VALUES.items())
GLM = f"add\n{PAIRS}"
TWICE = (("add", {"a": 1, "b": 2}), ("add", {"a": 3, "b": 4}))
HERMES = f'<tool_call>\n{{"name": "add", "arguments": {ARGUMENTS}}}\n</tool_call>'

TRANSCRIPTS = {
    "hermes": Transcript("hermes", f"Let me see.\n{HERMES}", "Let me see.\n"),
    "hermes, tokens of its own": Transcript("hermes", HERMES, special=TOOL_CALL),
    "hermes, several": Transcript(
        "hermes",
        "\n".join(f'<tool_call>\n{json.dumps({"name": name, "arguments": given})}\n</tool_call>' for name, given in TWICE),
        calls=TWICE,
    ),
    "hermes, none": Transcript("hermes", "It is 3.", "It is 3.", ()),
    "hermes, reasoning as content": Transcript("hermes", f"<think>\nhm\n</think>\n\n{HERMES}", "<think>\nhm\n</think>\n\n"),
    "qwen3, reasoning": Transcript(
        "hermes", f"<think>\nhm\n</think>\n\n{HERMES}", "", reasoning_parser="qwen3", reasoning="hm", special=THINK + TOOL_CALL
    ),
    "qwen3_coder": Transcript("qwen3_coder", f"Let me see.\n\n<tool_call>\n{XML}\n</tool_call>", "Let me see.", special=TOOL_CALL),
    "qwen3.5, reasoning": Transcript(
        "qwen3_coder", f"hm\n</think>\n\nSo:\n<tool_call>\n{XML}\n</tool_call>", "So:",
        reasoning_parser="qwen3", reasoning="hm", special=THINK + TOOL_CALL,
    ),
    "glm45": Transcript("glm45", f"Let me see.<tool_call>{GLM}</tool_call>", "Let me see.", special=TOOL_CALL),
    "glm45, reasoning": Transcript(
        "glm45", f"<think>hm</think>So:<tool_call>{GLM}</tool_call>", "So:", reasoning_parser="glm45", reasoning="hm", special=THINK + TOOL_CALL
    ),
    "llama3_json": Transcript("llama3_json", f'{{"name": "add", "parameters": {ARGUMENTS}}}', special=("<|python_tag|>",)),
    "mistral": Transcript("mistral", f"[TOOL_CALLS]add[ARGS]{ARGUMENTS}", special=("[TOOL_CALLS]", "[ARGS]")),
    "mistral, before version 11": Transcript(
        "mistral", f'[TOOL_CALLS] [{{"name": "add", "arguments": {ARGUMENTS}}}]', special=("[TOOL_CALLS]",)
    ),
    "deepseek_v3": Transcript(
        "deepseek_v3", f"So:{CALLS}{CALL}function{SEP}add\n```json\n{ARGUMENTS}\n```{CALL_END}{CALLS_END}", "So:", special=DEEPSEEK_TOKENS
    ),
    "deepseek_r1, reasoning": Transcript(
        "deepseek_v3",
        f"hm</think>So:{CALLS}{CALL}function{SEP}add\n```json\n{ARGUMENTS}\n```{CALL_END}{CALLS_END}",
        "So:", reasoning_parser="deepseek_r1", reasoning="hm", special=DEEPSEEK_TOKENS + THINK,
    ),
    "deepseek_v31": Transcript("deepseek_v31", f"So:{CALLS}{CALL}add{SEP}{ARGUMENTS}{CALL_END}{CALLS_END}", "So:", special=DEEPSEEK_TOKENS),
    "kimi_k2": Transcript(
        "kimi_k2", f"So:{KIMI[0]}{KIMI[1]}functions.add:0{KIMI[2]}{ARGUMENTS}{KIMI[3]}{KIMI[4]}", "So:", special=KIMI
    ),
    "minimax_m2": Transcript(
        "minimax_m2", f"So:<minimax:tool_call>\n{INVOKED}</minimax:tool_call>", "So:", special=MINIMAX_TOKENS
    ),
    "minimax_m2, reasoning": Transcript(
        "minimax_m2", f"hm\n</think>\n\nSo:<minimax:tool_call>\n{INVOKED}</minimax:tool_call>", "So:",
        reasoning_parser="minimax_m2", reasoning="hm", special=MINIMAX_TOKENS + THINK,
    ),
    "phi4_mini_json": Transcript("phi4_mini_json", f'functools[{{"name": "add", "arguments": {ARGUMENTS}}}]'),
}  # fmt: skip
MALFORMED = {
    "hermes, no JSON": Transcript("hermes", "<tool_call>add(1, 2)</tool_call>", "<tool_call>add(1, 2)</tool_call>", ()),
    "hermes, no arguments": Transcript("hermes", '<tool_call>{"name": "add"}</tool_call>', '<tool_call>{"name": "add"}</tool_call>', ()),
    "hermes, brackets without end": Transcript("hermes", f"<tool_call>{'[' * 9999}</tool_call>", f"<tool_call>{'[' * 9999}</tool_call>", ()),
    "qwen3_coder, cut off": Transcript("qwen3_coder", "So:\n<tool_call>\n<function=add", "So:", (("add", {}),), special=TOOL_CALL),
    "llama3_json, cut off": Transcript(
        "llama3_json", '{"name": "add", "parameters": ', '{"name": "add", "parameters": ', (), special=("<|python_tag|>",)
    ),
    "mistral, cut off": Transcript("mistral", '[TOOL_CALLS] [{"name": "add", "argum', '[{"name": "add", "argum', (), special=("[TOOL_CALLS]",)),
    "deepseek_v3, cut off": Transcript("deepseek_v3", f"So:{CALLS}{CALL}function{SEP}add\n```json\n{{", "So:", (), special=DEEPSEEK_TOKENS),
    "kimi_k2, arguments that are no JSON": Transcript(
        "kimi_k2", f"{KIMI[0]}{KIMI[1]}functions.add:0{KIMI[2]}{{a{KIMI[3]}{KIMI[4]}", "", (("add", "{a"),), special=KIMI
    ),
}  # fmt: skip
"""What vLLM gives for them is what the policy's turn is."""


def tokenizer(special: tuple[str, ...]) -> Any:
    """Tiny, with these special tokens besides."""
    found = templates.tokenizer.__wrapped__(templates.QWEN, END)
    found.add_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return found


def read(transcript: Transcript) -> Parsed:
    known = tokenizer(transcript.special)
    tokens = known.encode(transcript.text + END, add_special_tokens=False)
    names = ParserNames(transcript.tools, transcript.reasoning_parser)
    return parsed(known, ParseRequest([1, 2], tokens, ended=True, parsers=names, tools=[ADD]))


def arguments(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def require(found: Parsed, expected: Transcript) -> None:
    calls = tuple((c["function"]["name"], arguments(c["function"]["arguments"])) for c in found.tool_calls)
    assert calls == expected.calls
    assert (found.content, found.reasoning.strip()) == (expected.content, expected.reasoning)
    assert all(c["type"] == "function" for c in found.tool_calls)
    assert len({c["id"] for c in found.tool_calls}) == len(found.tool_calls), "each has an id of its own"


@pytest.mark.parametrize("name", TRANSCRIPTS)
def test_calls_reasoning_and_content_of_a_family_are_read_as_it_writes_them(name: str) -> None:
    require(read(TRANSCRIPTS[name]), TRANSCRIPTS[name])


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_call_is_what_vllm_makes_of_it_and_no_error(name: str) -> None:
    require(read(MALFORMED[name]), MALFORMED[name])


def harmony(text: str) -> Parsed:
    tokens = load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS).encode(text, allowed_special="all")
    names = ParserNames(FAMILIES["gpt_oss"].tools, FAMILIES["gpt_oss"].reasoning)
    return parsed(tokenizer(()), ParseRequest([1], tokens, ended=True, parsers=names, tools=[ADD]))


def test_the_channels_of_gpt_oss_are_its_reasoning_its_calls_and_its_content() -> None:
    call = f"<|channel|>commentary to=functions.add <|constrain|>json<|message|>{ARGUMENTS}<|call|>"
    expected = Transcript("openai", "", reasoning="hm")
    require(harmony(f"<|channel|>analysis<|message|>hm<|end|><|start|>assistant{call}"), expected)
    final = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>It is 3.<|return|>"
    require(harmony(final), Transcript("openai", "", "It is 3.", (), reasoning="hm"))


def test_every_family_s_parser_has_a_transcript() -> None:
    defaults = {family.tools for family in FAMILIES.values() if family.tools}
    assert defaults <= {t.tools for t in TRANSCRIPTS.values()} | {FAMILIES["gpt_oss"].tools}


def test_without_functions_a_parser_of_reasoning_separates_that_alone() -> None:
    known = tokenizer(THINK)
    tokens = known.encode("hm</think>It is 3.", add_special_tokens=False)
    asked = ParseRequest([1], tokens, ended=False, parsers=ParserNames("", "qwen3"))
    assert parsed(known, asked) == Parsed("It is 3.", "hm", [])


def test_the_arguments_of_the_template_say_whether_the_policy_reasons() -> None:
    """Qwen3's parser takes everything up to the end of reasoning for that, unless the template leaves it out."""
    known = tokenizer(THINK)
    tokens = known.encode("It is 3.", add_special_tokens=False)
    for silent, expected in ((True, Parsed("It is 3.", "", [])), (False, Parsed("", "It is 3.", []))):
        template = {"enable_thinking": False} if silent else {}
        asked = ParseRequest([1], tokens, False, ParserNames("", "qwen3"), template=template)
        assert parsed(known, asked) == expected


@pytest.mark.slow  # it imports vLLM once more, in a process
def test_the_route_reads_half_a_character_and_gives_up_what_takes_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A policy may write any escape: the answer has to be written and read with it. And it may write what takes its parser hours."""
    known = tokenizer(DEEPSEEK_TOKENS)
    known.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}')
    monkeypatch.setattr(parser_process, "SECONDS", 5.0)
    app = Starlette(routes=[Route(PARSE, parse, methods=["POST"])])
    model = SimpleNamespace(model=str(tmp_path), trust_remote_code=False, tokenizer_mode="auto")
    app.state.engine_client = SimpleNamespace(model_config=model)

    def route(parser: str, text: str) -> Parsed:
        tokens = known.encode(text, add_special_tokens=False)
        asked = ParseRequest([1], tokens, ended=False, parsers=ParserNames(parser, ""), tools=[ADD])
        return Parsed.of(client.post(PARSE, json=asked.body()).json())

    with TestClient(app) as client:
        half = route("hermes", '<tool_call>{"name": "add", "arguments": {"unit": "\\ud83d"}}</tool_call>')
        assert json.loads(half.tool_calls[0]["function"]["arguments"]) == {"unit": "\ud83d"}
        with pytest.raises(UnreadError, match="took longer than 5 s"):
            route("deepseek_v3", CALLS + f"{CALL}f{SEP}" * 10_000)


def test_a_parser_whose_tokens_the_model_does_not_have_is_unusable_and_says_why() -> None:
    asked = ParseRequest([1], [5], ended=False, parsers=ParserNames("llama3_json", ""), tools=[ADD])
    with pytest.raises(ParserUnusableError, match=r"<\|python_tag\|>"):
        parsed(tokenizer(()), asked)
    assert "python_tag" in answer(tokenizer(()), asked.body())["unusable"]


@pytest.mark.parametrize("tool", [{"type": "function"}, {"name": "add"}, 7])
def test_a_tool_that_is_no_schema_is_refused(tool: Any) -> None:
    asked = ParseRequest([1], [5], ended=False, parsers=ParserNames("hermes", ""), tools=[])
    with pytest.raises(ValueError, match="tools"):
        answer(tokenizer(()), asked.body() | {"tools": [tool]})
