"""What an API server says when it refuses a write for a reason that lasts."""

import json
from collections.abc import Callable, Collection

from rljob_operator.kube.api import ApiError, Object, error, kind_of

Refuses = Callable[[str, Object], ApiError | None]


def refused(verb: str, obj: Object, said: str, code: int = 403) -> ApiError:
    """By a quota, a webhook or an admission policy, in its own words."""
    text = f'{kind_of(obj).lower()}s "{obj["metadata"]["name"]}" is forbidden: {said}'
    return error(code, f"{verb} {kind_of(obj)}", json.dumps({"kind": "Status", "reason": "Forbidden", "message": text}))


def refusing(kinds: Collection[str], said: str, verbs: Collection[str] = ("create",), name: str = "") -> Refuses:
    """Refuses writes of these kinds. `name`: how the names begin."""

    def answer(verb: str, obj: Object) -> ApiError | None:
        meant = verb in verbs and kind_of(obj) in kinds and obj["metadata"]["name"].startswith(name)
        return refused(verb, obj, said) if meant else None

    return answer


def ending(namespace: str) -> Refuses:
    """As NamespaceLifecycle, the API server's own admission plugin: nothing new in a namespace that is being deleted."""

    def answer(verb: str, obj: Object) -> ApiError | None:
        if verb != "create" or obj["metadata"].get("namespace") != namespace:
            return None
        cause = {
            "reason": "NamespaceTerminating",
            "message": f"namespace {namespace} is being terminated",
            "field": "metadata.namespace",
        }
        status = {"kind": "Status", "reason": "Forbidden", "code": 403, "details": {"causes": [cause]}}
        status["message"] = f"unable to create new content in namespace {namespace} because it is being terminated"
        return error(403, f"{verb} {kind_of(obj)}", json.dumps(status))

    return answer
