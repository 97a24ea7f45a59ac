"""Chat templates whose end of turn no server knows, as those of Qwen2.5's base models."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from api.specs import make_spec
from rljob_api.spec import RLJobSpec
from rljob_trainer.data.tokenizer import (
    decoded,
    load_tokenizer,
    stops,
    turn_end,
    unheard_end,
    unread_arguments,
    write_ends,
)
from rljob_trainer.failure import ConfigurationError
from trainer.data.templates import ENDS, QWEN, QWEN3_ARGUMENT, tokenizer


def made(tmp_path: Path, task: str = "sft", eos: object = 1, generation: object = None):
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": eos, "vocab_size": 9999}))
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": generation, "top_p": 0.8}))
    data = {"train": ["/d"]} | ({} if task == "rl" else {"maxTokens": 64})
    return make_spec(task=task, data=data, model={"path": str(tmp_path)})


@pytest.mark.parametrize("name", ENDS)
def test_the_end_of_a_turn_is_found_in_every_kind_of_template(tmp_path, name):
    template, end = ENDS[name]
    tok = tokenizer(template, end)
    assert turn_end(made(tmp_path), tok) == (end, tok.convert_tokens_to_ids(end))
    assert turn_end(made(tmp_path), tokenizer(None)) is None
    assert turn_end(made(tmp_path), tokenizer("{% for m in messages %}{{ m.content }}\n{% endfor %}")) is None
    assert turn_end(made(tmp_path), tokenizer("{{ raise_exception('no') }}")) is None


TOK = tokenizer(QWEN, "<|im_end|>")
END = TOK.convert_tokens_to_ids("<|im_end|>")


@pytest.mark.parametrize("task", ["sft", "dpo"])
@pytest.mark.parametrize("generation", [None, 1, [1, 2]])
def test_an_unheard_end_is_warned_of_and_written_into_the_export(tmp_path, task, generation):
    spec = made(tmp_path, task, generation=generation)
    said = unheard_end(spec, TOK)
    assert f"ends a turn with '<|im_end|>' (id {END})" in said and "exports get it" in said
    write_ends(spec, TOK, tmp_path)
    before = [1, 2] if generation == [1, 2] else [1]
    for name in ("generation_config.json", "config.json"):
        assert json.loads((tmp_path / name).read_text())["eos_token_id"] == [END, *before]
    assert stops(tmp_path) == ("generation_config.json", [END, *before]) and unheard_end(spec, TOK) == ""
    assert json.loads((tmp_path / "config.json").read_text())["vocab_size"] == 9999


def test_rollouts_that_would_not_stop_are_warned_of_and_their_export_stays_as_it_is(tmp_path):
    spec = made(tmp_path, "rl", generation=1)
    assert f"add {END} to its eos_token_id" in unheard_end(spec, TOK)
    write_ends(spec, TOK, tmp_path)
    assert stops(tmp_path) == ("generation_config.json", [1])


@pytest.mark.parametrize("eos", [END, [1, END], None])
def test_nothing_is_said_where_servers_stop_or_nobody_knows(tmp_path, eos):
    spec = made(tmp_path, eos=eos)
    before = (tmp_path / "config.json").read_text()
    assert unheard_end(spec, TOK) == ""
    if eos is not None:
        write_ends(spec, TOK, tmp_path)
        assert (tmp_path / "config.json").read_text() == before


def test_a_text_is_the_same_whichever_way_its_tokens_are_decoded() -> None:
    class Own(PreTrainedTokenizerFast):
        def _decode(self, *arguments: Any, **named: Any) -> str:
            return super()._decode(*arguments, **named).upper()

    plain = tokenizer(None, "<|im_end|>")
    own = Own(tokenizer_object=plain.backend_tokenizer, eos_token="<|im_end|>")
    ids = plain.encode("one two<|im_end|> three", add_special_tokens=False)
    for found in (plain, own):
        assert decoded(found, ids) == found.decode(ids, skip_special_tokens=True)
    assert decoded(own, ids) != decoded(plain, ids)


def with_argument(path: Path, name: str) -> RLJobSpec:
    tokenizer(QWEN3_ARGUMENT, "<|im_end|>").save_pretrained(path)
    return make_spec(data={"chatTemplate": {"arguments": {name: False}}}, model={"path": str(path)})


@pytest.mark.parametrize("slip", ["enable_thinkng", "enableThinking", "enable_think", "Enable_thinking"])
def test_a_slip_in_an_argument_that_the_template_reads_is_refused(tmp_path, slip):
    with pytest.raises(ConfigurationError, match=f"arguments = {slip}: .*write enable_thinking"):
        load_tokenizer(with_argument(tmp_path, slip))


@pytest.mark.parametrize("name", ["thinking", "add_vision_id", "reasoning_effort", "date_string"])
def test_an_argument_that_another_template_would_read_is_warned_of(tmp_path, name):
    spec = with_argument(tmp_path, name)
    assert f"arguments: the chat template reads no variable {name!r}" in unread_arguments(spec, load_tokenizer(spec))


@pytest.mark.parametrize("name", ["enable_thinking", "chat_template", "documents"])
def test_an_argument_that_the_template_or_the_tokenizer_reads_is_taken(tmp_path, name):
    spec = with_argument(tmp_path, name)
    assert unread_arguments(spec, load_tokenizer(spec)) == ""
