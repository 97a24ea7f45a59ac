"""LLaMA-Factory's data sets, as its dataset_info.json describes them: which columns and forms of an RLJob read their rows, and what is left out."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rljob_import.settings import Settings, show
from rljob_import.table import Field, Note, Outcome, Problem, Said

PAIRS = ("dpo", "rm")
ALPACA = {"prompt": "instruction", "query": "input", "response": "output"}
FORMS = {("from", "value"): "sharegpt", ("role", "content"): "messages"}
"""By the tags of a turn's role and content."""
ROLES: dict[str, dict[str, tuple[str, ...]]] = {
    "sharegpt": {
        "user_tag": ("human", "user"),
        "assistant_tag": ("gpt", "assistant"),
        "observation_tag": ("observation",),
        "function_tag": ("function_call",),
        "system_tag": ("system",),
    },
    "messages": {
        "user_tag": ("user",),
        "assistant_tag": ("assistant",),
        "observation_tag": ("tool", "observation", "function"),
        "function_tag": ("function_call", "tool_calls"),
        "system_tag": ("system", "developer"),
    },
}
"""Names of roles that are read, by form."""
READ = {"system": ("system", "system_prompt"), "tools": ("tools",), "history": ("history",)}
"""Further columns that are read, by their roles; a history in alpaca's form only."""
MEDIA = "models read texts and images only"
LEFT = {
    "subset": "put the files of this subset in place",
    "folder": "put the files of this folder in place",
    "num_samples": "all rows of the file are used",
    "script_url": "no script is run: put the files that it makes in place",
    "cloud_file_name": "name the files in data.sources",
}
PLACES = ("file_name", "hf_hub_url", "ms_hub_url", "om_hub_url")
HUBS = PLACES[1:]
KNOWN = (*PLACES, "formatting", "ranking", "columns", "tags", "split", *LEFT)


@dataclass(frozen=True)
class DataSet:
    """One entry. Columns that it does not name are LLaMA-Factory's defaults only where it names none."""

    name: str
    entry: Mapping[str, Any]

    @property
    def columns(self) -> Mapping[str, Any]:
        return self.entry.get("columns") or {}

    @property
    def tags(self) -> Mapping[str, Any]:
        return self.entry.get("tags") or {}

    def column(self, role: str, usual: str) -> str:
        """The column of a role; empty: none."""
        return str(self.columns.get(role) or "") if self.columns else usual

    def note(self, outcome: Outcome, key: str, value: Any, text: str) -> Note:
        return Note(outcome, f"--dataset-info {self.name}: {key} = {show(value)}", text)

    def problem(self, key: str, text: str) -> Problem:
        return Problem(f"--dataset-info {self.name}: {key}", text)


def described(settings: Settings, names: Sequence[str], held_out: Sequence[str]) -> Iterator[Said]:
    """How the rows of the sets are read. Training sets of several forms are read by their own columns; those of held-out sets are as in training."""
    given = settings.options.data_sets
    unknown = [name for name in names if name not in given]
    if unknown:
        text = "its rows are read by the columns of the first one (data.format: auto); see --dataset-info"
        yield settings.changed("dataset", text if not given else f"{', '.join(unknown)}: {text}")
    trained, others = (
        [DataSet(n, given[n]) for n in dict.fromkeys(some) if isinstance(given.get(n), Mapping)]
        for some in (names, held_out)
    )
    forms = {one.name: {f.path: f for f in _fields(settings, one)} for one in (*trained, *others)}
    for one in (one for one in (*trained, *others) if one.name in forms):
        yield from _left_out(settings, one, forms[one.name])
    yield from _together(settings, {one.name: forms[one.name] for one in trained}, bool(unknown))
    for one in others:
        yield from _unlike(settings, one, forms[one.name], forms[trained[0].name] if trained else {})


def _unlike(
    settings: Settings, one: DataSet, form: Mapping[str, Field], training: Mapping[str, Field]
) -> Iterator[Said]:
    for path, ours in training.items():
        here = form[path].value if path in form else "the default"
        if here != ours.value:
            yield settings.lacking(
                "eval_dataset", f"{one.name}: {path} {show(here)} has to be {show(ours.value)}, as in training"
            )


def _together(settings: Settings, forms: Mapping[str, Mapping[str, Field]], unknown: bool) -> Iterator[Said]:
    """The fields of all sets, where they agree; else what differs is said."""
    paths = dict.fromkeys(path for form in forms.values() for path in form)
    texts = "data.chatTemplate.texts"
    for path in (path for path in paths if path != texts):
        values = {show(form[path].value if path in form else None) for form in forms.values()}
        if len(values) == 1 and not unknown:
            yield next(form[path] for form in forms.values() if path in form)
        elif path == "data.format":
            kinds = ", ".join(f"{name}: {form[path].value}" for name, form in forms.items())
            yield settings.changed("dataset", f"{kinds}; each file is read by its own columns (data.format: auto)")
        else:
            named = ", ".join(f"{name}: {form[path].value}" for name, form in forms.items() if path in form)
            yield settings.lacking("dataset", f"all files have one {path}, which is left at its default ({named})")
    if unknown and _templated(settings):
        yield Field(texts, True, "LLaMA-Factory puts every row through the template")
    else:
        yield from [form[texts] for form in forms.values() if texts in form][:1]


def _templated(settings: Settings) -> bool:
    return settings["stage"] != "pt" and settings["template"] != "empty"


def _fields(settings: Settings, one: DataSet) -> Iterator[Field]:
    """Format and keys of one set."""
    source, stage = f"--dataset-info: {one.name}", settings["stage"]
    if stage == "pt":
        yield Field("data.format", "text", source)
        yield Field("data.textKey", one.columns.get("prompt", "text"), source)
        return
    if stage in PAIRS:
        yield from (Field(f"data.{role}Key", one.column(role, role) or role, source) for role in ("chosen", "rejected"))
    form = _form(one, stage in PAIRS)
    yield Field("data.format", form, source)
    if form in ROLES:
        key = one.column("messages", "conversations")
        if key and key != "conversations":
            yield Field("data.messagesKey", key, source)
    elif form == "columns":
        yield Field("data.promptKey", one.column("prompt", ALPACA["prompt"]), source)
        if stage not in PAIRS:
            yield Field("data.responseKey", one.column("response", ALPACA["response"]), source)
        if _templated(settings):
            yield Field("data.chatTemplate.texts", True, "LLaMA-Factory puts every row through the template")


def _form(one: DataSet, paired: bool) -> str:
    if one.entry.get("formatting") in ("sharegpt", "openai"):
        return FORMS.get(_turn(one), "sharegpt")
    roles = ("prompt", "query") if paired else (*ALPACA,)
    usual = all(
        one.column(role, ALPACA[role]) in ("" if role == "query" else ALPACA[role], ALPACA[role]) for role in roles
    )
    return "alpaca" if usual else "columns"


def _turn(one: DataSet) -> tuple[str, str]:
    """Keys of a turn's role and content."""
    return str(one.tags.get("role_tag", "from")), str(one.tags.get("content_tag", "value"))


def _left_out(settings: Settings, one: DataSet, fields: Mapping[str, Field]) -> Iterator[Said]:
    """What the entry says, and no field does."""
    form = str(fields["data.format"].value)
    yield from _odd(one)
    for key in (key for key in LEFT if one.entry.get(key) is not None):
        yield one.note(Outcome.LACKING, key, one.entry[key], LEFT[key])
    if one.entry.get("split", "train") != "train" and not any(one.entry.get(hub) for hub in HUBS):
        yield one.note(Outcome.LACKING, "split", one.entry["split"], "the whole file is read")
    read = {"prompt", "response", "messages", "chosen", "rejected", *(("query",) if form == "alpaca" else ())}
    for role, name in one.columns.items():
        if role in read or name is None:
            continue
        if role == "images" and settings["stage"] == "sft":
            continue  # data.imageKey
        if name in READ.get(role, ()) and (role != "history" or form == "alpaca"):
            continue
        yield one.note(Outcome.LACKING, f"columns.{role}", name, _unread_column(role, form))


def _unread_column(role: str, form: str) -> str:
    if role in ("videos", "audios"):
        return MEDIA
    if role in READ and (role != "history" or form == "alpaca"):
        return f"the column of that role is `{role}`: rename it"
    return f"rows of data.format {form} have no such column"


def _odd(one: DataSet) -> Iterator[Said]:
    """Forms of rows that nothing reads."""
    for key in (key for key in one.entry if key not in KNOWN):
        yield one.note(Outcome.LACKING, key, one.entry[key], "is not read")
    formatting = one.entry.get("formatting", "alpaca")
    if formatting not in ("alpaca", "sharegpt", "openai"):
        yield one.problem("formatting", f"{show(formatting)} is none of alpaca, sharegpt and openai")
    if formatting == "alpaca" or not one.tags:
        return
    if _turn(one) not in FORMS:
        role, content = _turn(one)
        yield one.problem("tags", f"turns of {{{role}, {content}}} are not read: convert them to {{role, content}}")
        return
    for key, names in ROLES[FORMS[_turn(one)]].items():
        if one.tags.get(key) is not None and one.tags[key] not in names:
            text = f"turns of that role are called {' or '.join(names)}: convert the file"
            yield one.note(Outcome.LACKING, f"tags.{key}", one.tags[key], text)
