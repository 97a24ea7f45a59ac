"""Rules that the API server checks itself, as CEL: OBJECT_RULES of rules/, the job's name, and fields that may not change."""

from rljob_api import names
from rljob_api.rules.validator import JOB_NAME, OBJECT_RULES

Validation = dict[str, str]

NAME: Validation = {
    "rule": f"self.metadata.name.size() <= {names.MAX_JOB_NAME} && self.metadata.name.matches('^{JOB_NAME}$')",
    "message": f"metadata.name: at most {names.MAX_JOB_NAME} lower-case letters, digits and '-', beginning with a letter",
}

IMMUTABLE = {
    "task": "the checkpoints are of this one; create a new job",
    "checkpoint.path": "a run does not move; create a new job",
    "model.path": "the checkpoints hold this model; create a new job",
}


def validations() -> dict[tuple[str, ...], list[Validation]]:
    """Entries of `x-kubernetes-validations`, by the path of the schema that has them."""
    found: dict[tuple[str, ...], list[Validation]] = {(): []}
    for rule in OBJECT_RULES:
        found.setdefault((*rule.items.split("."), "[]") if rule.items else (), []).append(rule.kubernetes())
    found[()] += [
        {"rule": f"self.{path} == oldSelf.{path}", "message": f"spec.{path} is immutable: {why}"}
        for path, why in IMMUTABLE.items()
    ]
    return found
