"""Rules of spec.model.source and spec.data.sources."""

import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from urllib.parse import urlsplit

from rljob_api.spec import RLJobSpec
from rljob_api.spec.common import Source
from rljob_api.validation.pods import volume_of
from rljob_api.validation.result import Violation

DIGEST = re.compile(r"sha256=[0-9a-f]{64}")


def target_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """Sources are copied to a writable volume, and each to a directory of its own."""
    found = list(spec.sources.items())
    for i, (field, source) in enumerate(found):
        volume = volume_of(spec, source.path)
        if spec.volumes and (volume is None or volume.read_only):
            rule = "is on none of the writable volumes in spec.volumes, so that nothing can be fetched to it"
            yield Violation(f"{field}.path", source.path, rule, "put it below a mountPath without readOnly")
        for other, earlier in found[:i]:
            if _nested(source.path, earlier.path):
                rule = f"is not apart from {other}.path = {earlier.path}"
                yield Violation(f"{field}.path", source.path, rule, "give each source a directory of its own")


def address_violations(spec: RLJobSpec) -> Iterator[Violation]:
    for field, source in spec.sources.items():
        yield from _address_violations(f"{field}.source", source)


def _address_violations(field: str, source: Source) -> Iterator[Violation]:
    parts = urlsplit(source.source)
    web = parts.scheme in ("http", "https")
    if web and "@" in parts.netloc:
        fix = "fetch from a store that takes its credentials from the environment, and name a Secret in spec.envFrom"
        yield Violation(
            field, f"{parts.scheme}://...", "holds a password, which everybody can read who reads the job", fix
        )
    if parts.fragment and not (web and DIGEST.fullmatch(parts.fragment)):
        rule = "what follows `#` is the digest of a file on the web, sha256= and 64 hexadecimal digits"
        yield Violation(field, source.source, rule, "correct or remove it")
    if parts.scheme == "hf" and re.fullmatch(r"datasets/[^/]+", source.source.removeprefix("hf://")):
        yield Violation(
            field, source.source, "a data set of the hub has an owner", "write hf://datasets/ORG/SET@REVISION"
        )


def _nested(path: str, other: str) -> bool:
    a, b = PurePosixPath(path), PurePosixPath(other)
    return a.is_relative_to(b) or b.is_relative_to(a)


RULES = (target_violations, address_violations)
