"""Rules of what is trained on, held out and kept: `spec.data`, the batches of `spec.train`, and the sources that files are copied from."""

import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from urllib.parse import urlsplit

from rljob_api.rules.engine import (
    AGENT,
    CONTEXT,
    RL,
    SERVICE,
    TENSOR,
    TURN,
    Check,
    Expression,
    Rule,
    Violation,
    either,
    field,
    size,
)
from rljob_api.rules.volumes import SHARE, WRITE, unfetched, volume_of
from rljob_api.spec import RLJobSpec
from rljob_api.spec.common import Source
from rljob_api.spec.job import PAIRED
from rljob_api.spec.model import GeneratedData

PAIRS = field("task").is_in(PAIRED)
LONGEST = (field("data.maxPromptTokens") + either(AGENT, field("rollout.agent.maxTokens"), TURN)).named(
    "maxPromptTokens + maxTokens"
)
MOST_SAID = either(AGENT, "spec.rollout.agent.maxTokens", "spec.rollout.sampling.maxTokens").named(
    "maxTokens of spec.rollout.sampling or, where there is one, spec.rollout.agent"
)
"""The field that bounds what the policy says."""
ALIGNMENT = TENSOR * either(CONTEXT > 1, CONTEXT * 2, 1)
"""`Layout.alignment` as an expression."""


def token_rules(micro_batch: Expression, alignment: Expression) -> tuple[Rule, ...]:
    """The longest sample fits into a micro-batch of some ranks, which is filled up to a multiple of their alignment."""

    def aligned(tokens: Expression) -> Expression:
        return (tokens + alignment - 1) // alignment * alignment

    def takes(room: Expression, tokens: Expression) -> Expression:
        """Whether that many, aligned, fit."""
        return room // alignment * alignment >= tokens

    longest = aligned(LONGEST).named("rounded up for tensor and context parallelism")
    example = (aligned(field("data.maxTokens")) * either(PAIRS, 2, 1)).named(
        "data.maxTokens, rounded up for tensor and context parallelism, twice for a pair"
    )
    of_clients = aligned(field("service.maxTokens")).named(
        "service.maxTokens, rounded up for tensor and context parallelism"
    )
    return (
        Rule(
            "train.tokensPerMicroBatch",
            RL.implies(takes(micro_batch, LONGEST)),
            "the longest sample must fit into a micro-batch: {0}, {1}",
            "raise it, or lower spec.data.maxPromptTokens or {2}",
            (LONGEST, longest, MOST_SAID),
            micro_batch.of,
        ),
        Rule(
            "train.tokensPerMicroBatch",
            RL | SERVICE | takes(micro_batch // either(PAIRS, 2, 1), field("data.maxTokens")),
            "the longest sample must fit into a micro-batch: {0}",
            "raise it, or lower spec.data.maxTokens",
            (example,),
            micro_batch.of,
        ),
        Rule(
            "train.tokensPerMicroBatch",
            SERVICE.implies(takes(micro_batch, field("service.maxTokens"))),
            "the longest sample of a client must fit into a micro-batch: {0}",
            "raise it, or lower spec.service.maxTokens",
            (of_clients,),
            micro_batch.of,
        ),
    )


OBJECT_RULES = (
    Rule(
        "checkpoint.keepExports",
        (field("checkpoint.exportEverySteps") > 0) | field("checkpoint.keepExports").equals(3),
        "only the exports of spec.checkpoint.exportEverySteps are counted, and there are none",
        "remove it, or set spec.checkpoint.exportEverySteps",
    ),
    Rule(
        "train.miniBatches",
        RL.implies(field("train.miniBatches").divides(field("train.promptsPerStep"))),
        "the samples of a prompt stay in one mini-batch, and {0} is not divisible by it",
        "choose a divisor of spec.train.promptsPerStep",
        (field("train.promptsPerStep"),),
    ),
    Rule(
        "train.miniBatches",
        RL | SERVICE | field("train.miniBatches").divides(field("train.samplesPerStep")),
        "all mini-batches are of one size, and {0} is not divisible by it",
        "choose a divisor of spec.train.samplesPerStep",
        (field("train.samplesPerStep"),),
    ),
    *token_rules(field("train.tokensPerMicroBatch"), ALIGNMENT),
    Rule(
        "data.weights",
        size("data.weights").equals(0) | size("data.weights").equals(size("data.train")),
        "there is one number for each file of spec.data.train",
        "give as many numbers as files, or remove it",
        value=lambda spec: f"{len(spec.data.weights)} numbers, {len(spec.data.train)} files",
    ),
    Rule(
        "evaluation",
        (field("evaluation.everySteps").equals(0) & ~field("evaluation.only"))
        | (size("data.validation") > 0)
        | (size("evaluation.sets") > 0),
        "there is no held-out data",
        "name files in spec.data.validation, for task rl also in spec.evaluation.sets, or remove everySteps and only",
        value=lambda spec: "only" if spec.evaluation.only else f"everySteps: {spec.evaluation.every_steps}",
    ),
)

_MESSAGES = {"conversation", "messages", "tools", "documents"}
_RENDERING = {"add_generation_prompt", "continue_final_message", "chat_template", "return_assistant_tokens_mask"}
_TOKENS = {
    "tokenize",
    "tokenizer_kwargs",
    "processor_kwargs",
    "padding",
    "truncation",
    "max_length",
    "return_tensors",
    "return_dict",
}
OWNED = _MESSAGES | _RENDERING | _TOKENS
"""Arguments that the trainer passes to apply_chat_template itself."""


def argument_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """Arguments of the template may not replace arguments of apply_chat_template."""
    for name in sorted(spec.data.chat_template.arguments.keys() & OWNED):
        rule = "the trainer says it whenever it applies the template"
        yield Violation(f"spec.data.chatTemplate.arguments.{name}", "set", rule, "remove it")


DATA_SUFFIXES = (".parquet", ".arrow", ".json", ".jsonl")
"""Ends of the names of data files, by which the trainer chooses a reader."""
HUB = ("huggingface.co", "hf.co")
DIGEST = re.compile(r"sha256=[0-9a-f]{64}")


def target_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """Each source is copied to a directory of its own."""
    sources = list(spec.sources.items())
    for i, (where, source) in enumerate(sources):
        if PurePosixPath(spec.checkpoint.path).is_relative_to(source.path):
            rule = f"holds spec.checkpoint.path = {spec.checkpoint.path} as well, and a source needs a directory of its own"
            yield Violation(f"{where}.path", source.path, rule, "give one of them another directory")
        for other, earlier in sources[:i]:
            if _nested(source.path, earlier.path):
                rule = f"is not apart from {other}.path = {earlier.path}"
                yield Violation(f"{where}.path", source.path, rule, "give each source a directory of its own")


def fetched_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """Sources are copied to a writable volume that all pods share."""
    for where, source in spec.sources.items():
        volume = volume_of(spec, source.path)
        if spec.volumes and (volume is None or not volume.writable):
            rule = "is on none of the writable volumes in spec.volumes, so that nothing can be fetched to it"
            yield Violation(f"{where}.path", source.path, rule, WRITE)
        elif why := unfetched(volume, spec):
            yield Violation(f"{where}.path", source.path, why, SHARE)


def address_violations(spec: RLJobSpec) -> Iterator[Violation]:
    for where, source in spec.sources.items():
        yield from _address_violations(f"{where}.source", source)
        yield from _page_violations(f"{where}.source", source)


def _address_violations(where: str, source: Source) -> Iterator[Violation]:
    parts = urlsplit(source.source)
    web = parts.scheme in ("http", "https")
    if web and "@" in parts.netloc:
        fix = "fetch from a store that takes its credentials from the environment, and name a Secret in spec.envFrom"
        yield Violation(
            where, f"{parts.scheme}://...", "holds a password, which everybody can read who reads the job", fix
        )
    if parts.fragment and not (web and DIGEST.fullmatch(parts.fragment)):
        rule = "what follows `#` is the digest of a file on the web, sha256= and 64 hexadecimal digits"
        yield Violation(where, source.source, rule, "correct or remove it")
    if parts.scheme == "hf" and re.fullmatch(r"datasets/[^/]+", source.source.removeprefix("hf://")):
        yield Violation(
            where, source.source, "a data set of the hub has an owner", "write hf://datasets/ORG/SET@REVISION"
        )


def _page_violations(where: str, source: Source) -> Iterator[Violation]:
    """The address of a page about a model or a set, which somebody copied from a browser: the page itself would be fetched."""
    parts = urlsplit(source.source)
    named = re.match(r"/((datasets/)?[^/]+/[^/]+)(/(tree|blob)/([^/]+))?(/|$)", parts.path)
    if parts.netloc.removeprefix("www.") in HUB and named and "/resolve/" not in parts.path:
        address = f"hf://{named[1]}{f'@{named[5]}' if named[5] else ''}"
        yield Violation(where, source.source, "is a page about files, and none of them", f"write {address}")


def _nested(path: str, other: str) -> bool:
    a, b = PurePosixPath(path), PurePosixPath(other)
    return a.is_relative_to(b) or b.is_relative_to(a)


def suffix_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """Data files of formats that nothing reads. Megatron's indexed data sets are named without a suffix."""
    if spec.task == "pretrain" and spec.data.format in ("auto", "indexed"):
        return
    for where, path in data_files(spec):
        if PurePosixPath(path).suffix not in DATA_SUFFIXES:
            rule = f"its name ends in none of {', '.join(DATA_SUFFIXES)}, by which the trainer chooses a reader"
            yield Violation(where, path, rule, "convert the file, or rename it")


def pattern_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """Data files are named one by one, so that their order is that of the spec."""
    for where, path in data_files(spec):
        if re.search(r"[*?]", path):
            rule = "is a pattern, and files are read by their names alone"
            yield Violation(where, path, rule, "name each file; patterns are for spec.data.sources[].files")


def data_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """If the job has volumes, its data are on one of them."""
    for where, path in data_files(spec):
        if spec.volumes and volume_of(spec, path) is None:
            rule = "is on none of spec.volumes"
            yield Violation(where, path, rule, "put it below a mountPath, or mount the volume that holds it")


def generated_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """Files that are generated are read, written once each, and have no rows in common."""
    read = {path for _, path in data_files(spec)}
    for i, one in enumerate(spec.data.generated):
        where = f"spec.data.generated[{i}]"
        volume = volume_of(spec, one.path)
        if one.path not in read:
            rule = "nothing reads this file"
            yield Violation(
                f"{where}.path", one.path, rule, "name it in spec.data.train, validation or spec.evaluation.sets"
            )
        if PurePosixPath(one.path).suffix != ".jsonl":
            yield Violation(
                f"{where}.path", one.path, "rows are written as JSON, one per line", "end its name in .jsonl"
            )
        if volume is not None and not volume.writable:
            rule = f"is on the volume {volume.name}, which is read-only"
            yield Violation(f"{where}.path", one.path, rule, WRITE)
        elif why := unfetched(volume, spec):
            yield Violation(f"{where}.path", one.path, why, SHARE)
        for j, other in enumerate(spec.data.generated[:i]):
            if shared := _shared(one, other):
                rule, fix = shared
                yield Violation(where, one.path, rule.format(f"spec.data.generated[{j}]"), fix)
                break


def _shared(one: GeneratedData, other: GeneratedData) -> tuple[str, str] | None:
    """What is wrong with two files, and the fix."""
    if one.path == other.path:
        return "writes the file of {}, too", "choose another path"
    if (one.library, one.environment, one.arguments) != (other.library, other.environment, other.arguments):
        return None
    if one.seed != other.seed:
        return (
            "may have rows of {}: the environment is the same, and the seed is not",
            "give both one seed, and an offset behind the other's rows",
        )
    if one.offset < other.offset + other.size and other.offset < one.offset + one.size:
        return (
            "has rows of {}: environment and seed are the same, and the rows from offset on overlap",
            "set offset behind the other's rows",
        )
    return None


def data_files(spec: RLJobSpec) -> Iterator[tuple[str, str]]:
    """Fields and paths of training and held-out data."""
    yield from ((f"spec.data.train[{i}]", path) for i, path in enumerate(spec.data.train))
    yield from ((f"spec.data.validation[{i}]", path) for i, path in enumerate(spec.data.validation))
    for i, one in enumerate(spec.evaluation.sets):
        yield from ((f"spec.evaluation.sets[{i}].files[{j}]", path) for j, path in enumerate(one.files))


RULES: tuple[Check, ...] = (
    *OBJECT_RULES,
    argument_violations,
    target_violations,
    fetched_violations,
    address_violations,
    suffix_violations,
    pattern_violations,
    data_violations,
    generated_violations,
)
