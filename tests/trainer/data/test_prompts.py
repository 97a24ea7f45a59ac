"""Prompts through a real tokenizer, one token per character."""

import json
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from rljob_api.spec.model import ChatTemplate, DataSpec, RewardSpec
from rljob_trainer.data.files import places
from rljob_trainer.data.prompts import load_prompts, require_prompts_of_every_file
from rljob_trainer.data.tokenizer import ToolTokenizer, Vocabulary, load_tokenizer
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.rewards.rules import validate_row
from trainer.driver.buffer.specs import job

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m.role == 'system' %}{{ raise_exception('no system role') }}{% endif %}<{{ m.role }}>{{ m.content }}"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
CHAT = [{"role": "user", "content": "1+1="}]


def tokenizer(template: str | None) -> PreTrainedTokenizerFast:
    """Puts its beginning-of-sequence token before plain texts, as Llama's does."""
    words = {"^": 0, "?": 1} | {chr(c): c for c in range(33, 127) if chr(c) not in "^?"}
    made = Tokenizer(models.WordLevel(words, unk_token="?"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    made.post_processor = processors.TemplateProcessing(single="^ $A", special_tokens=[("^", 0)])
    return PreTrainedTokenizerFast(tokenizer_object=made, bos_token="^", unk_token="?", chat_template=template)


def load(tmp_path: Path, prompts: list, template=TEMPLATE, rewards=None, systems=None, tools=None, **fields):
    """`template`: or the whole tokenizer."""
    columns = {"prompt": prompts, "answer": [str(i) for i in range(len(prompts))]}
    columns |= {name: held for name, held in (("system", systems), ("tools", tools)) if held}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    judges = partial(validate_row, rewards or [RewardSpec(rule="exactMatch")], by_driver=True)
    path = str(tmp_path / "a.parquet")
    files = places("spec.data.train", [path])
    used = tokenizer(template) if template is None or isinstance(template, str) else template
    return load_prompts(DataSpec(train=[path], **fields), files, used, judges, tmp_path / "rows")


def test_texts_get_the_tokenizers_special_tokens(tmp_path):
    (prompt,) = load(tmp_path, ["1+1="])
    assert prompt.tokens == (0, *map(ord, "1+1=")) and prompt.text == "1+1="


@pytest.mark.parametrize(("prompts", "fields"), [([CHAT], {}), (["1+1="], {"chat_template": ChatTemplate(texts=True)})])
def test_messages_go_through_the_chat_template_up_to_the_assistants_turn_and_get_no_second_bos(
    tmp_path, prompts, fields
):
    (prompt,) = load(tmp_path, prompts, **fields)
    assert prompt.text == "^<user>1+1=<assistant>"
    assert prompt.tokens == (0, *map(ord, "<user>1+1=<assistant>"))


def test_a_file_with_a_share_and_no_prompt_that_is_short_enough_is_refused(tmp_path):
    paths = [str(tmp_path / name) for name in ("a.jsonl", "b.jsonl")]
    for path, prompt in zip(paths, ("1", "11111"), strict=True):
        Path(path).write_text(json.dumps({"prompt": prompt, "answer": "1"}))
    spec = DataSpec(train=paths, weights=[1.0, 3.0], max_prompt_tokens=4)
    found = load_prompts(spec, places("spec.data.train", paths), tokenizer(None), lambda *_: None, tmp_path / "rows")
    assert found.counts.kept == {"spec.data.train[0]": 1, "spec.data.train[1]": 0}
    with pytest.raises(ConfigurationError, match=r"spec.data.train\[1\] has a share, and all its prompts are longer"):
        require_prompts_of_every_file(spec, found)
    require_prompts_of_every_file(spec.model_copy(update={"weights": []}), found)


ARGUMENT = "{{ style }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"


def test_a_template_gets_its_arguments_and_a_system_prompt_where_the_row_has_none(tmp_path):
    own = [{"role": "system", "content": "own"}, *CHAT]
    wanted = ChatTemplate(arguments={"style": "plain"}, system_prompt="short")
    found = load(tmp_path, [CHAT, own], template=ARGUMENT, chat_template=wanted)
    assert [p.text for p in found] == ["plain<system>short<user>1+1=", "plain<system>own<user>1+1="]
    (text,) = load(tmp_path, ["1+1="], template=ARGUMENT, chat_template=wanted.model_copy(update={"texts": True}))
    assert text.text == "plain<system>short<user>1+1="
    with pytest.raises(ConfigurationError, match="no place for spec.data.chatTemplate.systemPrompt"):
        load(tmp_path, ["1+1="], chat_template=wanted)


def test_a_template_file_takes_the_place_of_the_tokenizers(tmp_path):
    tokenizer(TEMPLATE).save_pretrained(tmp_path)
    (tmp_path / "own.jinja").write_text(ARGUMENT)

    def loaded(path: str | None):
        spec = job(model={"path": str(tmp_path)}, data={"train": ["/t"], "chatTemplate": {"path": path}})
        return load_tokenizer(spec).chat_template

    assert (loaded(None), loaded(str(tmp_path / "own.jinja"))) == (TEMPLATE, ARGUMENT)
    with pytest.raises(ConfigurationError, match="cannot be read") as caught:
        loaded("/none.jinja")
    assert caught.value.field == "spec.data.chatTemplate.path"


def test_a_tokenizer_without_a_template_is_refused_only_where_one_is_needed(tmp_path):
    assert len(load(tmp_path, ["1+1="], template=None)) == 1
    with pytest.raises(ConfigurationError, match="no chat template.*chat_template.jinja") as caught:
        load(tmp_path, [CHAT], template=None)
    assert caught.value.field == "spec.data.train[0]" and caught.value.value.endswith("row 1")
    with pytest.raises(ConfigurationError) as caught:
        load(tmp_path, ["1+1="], template=None, chat_template=ChatTemplate(texts=True))
    assert caught.value.field == "spec.data.chatTemplate.texts"


@pytest.mark.parametrize(
    ("model", "complaint"),
    [
        (models.BPE({"a": 0}, []), "makes no token of its prompt"),
        (models.WordLevel({"a": 0}), "cannot encode its prompt"),
    ],
)
def test_a_prompt_that_the_tokenizer_does_not_know_is_refused(tmp_path, model, complaint):
    file = tmp_path / "a.jsonl"
    file.write_text('{"prompt": "a"}\n{"prompt": "b"}\n')
    plain = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(model))
    with pytest.raises(ConfigurationError, match=f"row 2: the tokenizer in spec.model.path {complaint}"):
        load_prompts(
            DataSpec(train=[str(file)]),
            places("spec.data.train", [str(file)]),
            plain,
            lambda source, answer: None,
            tmp_path / "rows",
        )


def test_what_the_template_refuses_is_told_with_the_row(tmp_path):
    with pytest.raises(
        ConfigurationError, match=r"row 2: the model's chat template refuses the messages: .*no system role"
    ):
        load(tmp_path, [CHAT, [{"role": "system", "content": "s"}, *CHAT]])


def test_longer_prompts_are_left_out_and_counted_and_indices_stay(tmp_path):
    kept = load(tmp_path, ["12+12=", "1+1=", "2+2="], max_prompt_tokens=5)
    assert [(p.index, p.text) for p in kept] == [(1, "1+1="), (2, "2+2=")]
    assert (kept.counts.rows, kept.counts.too_long) == (3, 1)


def test_no_prompt_within_the_limit_is_an_error(tmp_path):
    with pytest.raises(ConfigurationError, match="all 2 prompts") as caught:
        load(tmp_path, ["1+1=", "2+2="], max_prompt_tokens=1)
    assert caught.value.field == "spec.data.maxPromptTokens"


def test_duplicates_are_kept_and_counted(tmp_path):
    kept = load(tmp_path, ["1+1=", "1+1=", "1+1="])
    assert (len(kept), kept.counts.duplicates) == (3, 0), "their answers differ"
    columns = {"prompt": ["1+1="] * 3, "answer": ["2"] * 3}
    pq.write_table(pa.table(columns), tmp_path / "b.parquet")
    spec = DataSpec(train=[str(tmp_path / "b.parquet")])
    kept = load_prompts(
        spec, places("spec.data.train", spec.train), tokenizer(None), lambda source, answer: None, tmp_path / "rows"
    )
    assert (len(kept), kept.counts.duplicates) == (3, 2)


def test_a_row_that_no_reward_can_judge_is_named(tmp_path):
    with pytest.raises(ConfigurationError, match=r"row 1: no entry of spec.rewards .* data source ''; add an entry"):
        load(tmp_path, ["1+1="], rewards=[RewardSpec(rule="exactMatch", data_source="sum")])


DATED = "{{ strftime_now('%d %b %Y %H:%M:%S.%f') }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"


def test_the_fingerprint_is_of_rows_and_template_and_not_of_the_date_that_the_template_writes(tmp_path):
    """Llama 3.1 to 3.3, gpt-oss and Granite print it: a job goes on after midnight."""
    first, again = (load(tmp_path, [CHAT, CHAT], template=DATED) for _ in range(2))
    assert first[0].text != again[0].text and first.digest == again.digest
    others = [
        load(tmp_path, [CHAT, [{"role": "user", "content": "2+2="}]], template=DATED),
        load(tmp_path, [CHAT, CHAT], template=DATED + " "),
        load(tmp_path, [CHAT, CHAT], template=DATED, chat_template=ChatTemplate(system_prompt="brief")),
        load(tmp_path, [CHAT, CHAT], template=DATED, chat_template=ChatTemplate(arguments={"style": 1})),
        load(tmp_path, [CHAT, CHAT], template=DATED, systems=["brief", None]),
    ]
    assert len({first.digest, *(other.digest for other in others)}) == 6
    assert load(tmp_path, ["1+1="], template=DATED).digest == load(tmp_path, ["1+1="], template=None).digest


TOOLED = "{{ tools | tojson if tools else '' }}" + ARGUMENT
ADD = {"type": "function", "function": {"name": "add"}}


def test_the_columns_system_and_tools_reach_the_template(tmp_path):
    (read,) = load(tmp_path, [CHAT], template=TOOLED, systems=["brief"], tools=[json.dumps([ADD])])
    assert read.text == json.dumps([ADD]) + "<system>brief<user>1+1="
    (text,) = load(tmp_path, ["1+1="], template=ARGUMENT, systems=["brief"], chat_template=ChatTemplate(texts=True))
    assert text.text == "<system>brief<user>1+1="
    own = [{"role": "system", "content": "brief"}, *CHAT]
    (same,) = load(tmp_path, [own], template=ARGUMENT, systems=["brief"])
    assert same.text == text.text
    (spec_gives_way,) = load(
        tmp_path, [CHAT], template=ARGUMENT, systems=["brief"], chat_template=ChatTemplate(system_prompt="long")
    )
    assert spec_gives_way.text == text.text


@pytest.mark.parametrize(
    ("prompt", "columns", "complaint"),
    [
        ("1+1=", {"systems": ["brief"]}, "'brief' in a column, and a text, which.* no place for it; set .*texts: true"),
        ("1+1=", {"tools": [json.dumps([ADD])]}, "the policy would not see the functions of its column 'tools'"),
        ([{"role": "system", "content": "long"}, *CHAT], {"systems": ["brief"]}, "begin with another one"),
        (CHAT, {"systems": [3]}, "column 'system' holds 3, which is not a text"),
        (CHAT, {"tools": ["add"]}, "'tools' holds 'add', which is not a list of functions"),
    ],
)
def test_columns_system_and_tools_that_have_no_place_are_refused(tmp_path, prompt, columns, complaint):
    with pytest.raises(ConfigurationError, match=complaint) as caught:
        load(tmp_path, [prompt], template=ARGUMENT, **columns)
    assert caught.value.value.endswith("row 1")


def test_functions_of_a_row_beside_those_of_the_agent_are_refused(tmp_path):
    made = ToolTokenizer(tokenizer(TOOLED), [ADD])
    with pytest.raises(ConfigurationError, match="spec.rollout.agent.tools has others, which alone can be called"):
        load(tmp_path, [CHAT], template=made, tools=[json.dumps([ADD])])


@pytest.mark.parametrize("behind", [";", "; ~"])
def test_a_prompt_ends_without_what_the_tokenizer_puts_behind_a_text(tmp_path, behind):
    """add_eos_token, or a TemplateProcessing that ends with `<eos>` or `[SEP]`: the policy would go on behind the end of the sequence."""
    made = tokenizer(None)
    special = [("^", 0), (";", ord(";")), ("~", ord("~"))]
    made.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=f"^ $A {behind}", special_tokens=special
    )
    found = load(tmp_path, ["1+1=", "1;", ";"], template=made)
    assert [p.tokens for p in found] == [(0, *map(ord, text)) for text in ("1+1=", "1;", ";")]


def test_a_data_source_that_is_called_like_a_field_is_not_taken_for_a_missing_answer(tmp_path):
    path = str(tmp_path / "a.jsonl")
    Path(path).write_text(json.dumps({"prompt": "1", "answer": "", "data_source": "answerKey"}))
    judges = partial(validate_row, [RewardSpec(rule="exactMatch", data_source="else")], by_driver=True)
    with pytest.raises(ConfigurationError, match="add an entry with dataSource 'answerKey'"):
        load_prompts(DataSpec(train=[path]), places("spec.data.train", [path]), tokenizer(None), judges, tmp_path / "r")


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
@pytest.mark.parametrize(("mark", "column"), [("<image>", "images"), ("<image>", "image"), ("<video>", "videos")])
def test_a_row_that_says_where_an_image_stands_is_refused_where_nobody_reads_it(tmp_path, suffix, mark, column):
    row = {"prompt": [{"role": "user", "content": f"{mark} 1+1="}], "answer": "2", column: ["a.png"]}
    path = tmp_path / f"b.{suffix}"
    pq.write_table(pa.Table.from_pylist([row]), path) if suffix == "parquet" else path.write_text(json.dumps(row))
    spec = DataSpec(train=[str(path)])
    files = places("spec.data.train", spec.train)
    with pytest.raises(ConfigurationError, match=f"says {mark} and has a column '{column}', which is not read"):
        load_prompts(spec, files, tokenizer(ARGUMENT), lambda *_: None, tmp_path / "rows")


def test_a_mere_word_in_a_file_without_such_a_column_is_a_word(tmp_path):
    (found,) = load(tmp_path, [[{"role": "user", "content": "write <image>"}]], template=ARGUMENT)
    assert found.text == "<user>write <image>"


def test_a_prompt_with_a_token_that_the_model_has_no_row_for_is_refused_by_row(tmp_path):
    path = tmp_path / "b.jsonl"
    path.write_text('{"prompt": "11"}\n{"prompt": "1="}')
    spec = DataSpec(train=[str(path)])
    files = places("spec.data.train", spec.train)
    few = Vocabulary(ord("="), "/m")
    with pytest.raises(
        ConfigurationError, match="'=' with the id 61, and the model in /m has vocab_size = 61"
    ) as caught:
        load_prompts(spec, files, tokenizer(None), lambda *_: None, tmp_path / "rows", vocabulary=few)
    assert caught.value.value.endswith("row 2")
