"""One kind of object: the newest version seen of each, with an index by group.

Why reconciles may decide on it instead of reading live:

- An object never goes back: an older version than the known one is ignored, also the echo of our own writes, which enter as they are answered.
- A cache that lags can therefore only show a past of the cluster. Every write that follows carries the uid or resourceVersion that was seen, so
  that it fails (Conflict) where the past is not the present; the status, in which every intent is written first, always does. We are its only
  writer (see kube/leader_election.py) and know our own writes, so the same attempt is never opened twice.
- That something is *absent* (a member's pod, a heartbeat, a node) is what a broken watch looks like, too. It is asked live before it is believed:
  see model/observer.py.
"""

import logging
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from typing import Any

from rljob_api import names
from rljob_operator.kube.api import Key, Object

log = logging.getLogger(__name__)


def is_ours(obj: Object) -> bool:
    """By label."""
    return (obj["metadata"].get("labels") or {}).get(names.LABEL_MANAGED_BY) == names.MANAGED_BY


@dataclass(frozen=True, slots=True)
class Entry[T]:
    """One object."""

    value: T
    version: int
    uid: str
    group: Key | None
    """What it belongs to: children to their job, for example."""


def job_of(obj: Object) -> Key | None:
    """By label."""
    name = (obj["metadata"].get("labels") or {}).get(names.LABEL_JOB)
    return (obj["metadata"].get("namespace", ""), name) if name else None


class Cache[T]:
    """`transform(object, before)` makes the value of an entry; `before` is that of the former version, or None. An object
    for which it raises is logged and ignored.

    `predicate(before, after)`: whether the change calls for a reconcile. Methods that change something return the groups for which it holds.
    """

    def __init__(
        self,
        transform: Callable[[Object, T | None], T],
        predicate: Callable[[T, T], bool] = lambda a, b: a != b,
        group: Callable[[Object], Key | None] = job_of,
    ) -> None:
        self._transform, self._predicate, self._group = transform, predicate, group
        self._objects: dict[Key, Entry[T]] = {}
        self._groups: dict[Key, dict[Key, Entry[T]]] = {}

    def __len__(self) -> int:
        return len(self._objects)

    def get(self, key: Key) -> Entry[T] | None:
        return self._objects.get(key)

    def of(self, group: Key) -> Mapping[Key, Entry[T]]:
        """By namespace and name: a group may reach over namespaces."""
        return self._groups.get(group, {})

    def values(self) -> list[T]:
        return [entry.value for entry in self._objects.values()]

    def groups_of(self, wanted: Callable[[T], bool]) -> set[Key]:
        """Those that have such a value."""
        return {entry.group for entry in self._objects.values() if entry.group and wanted(entry.value)}

    def put(self, obj: Object) -> set[Key]:
        """Unless a newer version is known."""
        key, version = key_of(obj), version_of(obj)
        old = self._objects.get(key)
        if old and version <= old.version:
            return set()
        same = old if old and old.uid == obj["metadata"]["uid"] else None
        try:
            value = self._transform(obj, same.value if same else None)
        except Exception:  # no foreign object may end or stall the operator
            log.exception("%s %s/%s cannot be read and is ignored", obj.get("kind"), *key)
            return set()
        new = Entry(value, version, obj["metadata"]["uid"], self._group(obj))
        self._forget(key)
        self._objects[key] = new
        if new.group:
            self._groups.setdefault(new.group, {})[key] = new
        silent = same and same.group == new.group and not self._predicate(same.value, value)
        return set() if silent else _groups(old, new)

    def remove(self, obj: Object) -> set[Key]:
        """A deletion's version is newer than the object's; a successor of the same name is newer still, and stays."""
        key = key_of(obj)
        old = self._objects.get(key)
        return self.delete(key) if old and version_of(obj) >= old.version else set()

    def delete(self, key: Key) -> set[Key]:
        """It is gone: a live read has just said so."""
        return _groups(self._forget(key))

    def prune(self, listed: Set[Key], version: str, namespace: str | None) -> set[Key]:
        """What a list of `namespace` (None: everywhere) lacks is gone, unless it is newer than the list."""
        changed = set[Key]()
        for key, entry in list(self._objects.items()):
            in_scope = namespace is None or key[0] == namespace
            if in_scope and key not in listed and entry.version <= int(version):
                changed |= self.delete(key)
        return changed

    def _forget(self, key: Key) -> Entry[T] | None:
        old = self._objects.pop(key, None)
        if old and old.group:
            siblings = self._groups[old.group]
            del siblings[key]
            if not siblings:
                del self._groups[old.group]
        return old


def _groups(*entries: Entry[Any] | None) -> set[Key]:
    return {e.group for e in entries if e and e.group}


def key_of(obj: Object) -> Key:
    return obj["metadata"].get("namespace", ""), obj["metadata"]["name"]


def version_of(obj: Object) -> int:
    """Versions of one object are numbers that grow: etcd's revisions, and by KEP-5504 any server's."""
    return int(obj["metadata"]["resourceVersion"])


def strip_managed_fields(obj: Object, *dropped: str) -> Object:
    """Without the bookkeeping of field owners, which is most of many objects, and without `dropped`."""
    meta = {k: v for k, v in obj["metadata"].items() if k != "managedFields"}
    return {k: v for k, v in obj.items() if k not in dropped} | {"metadata": meta}


def same_but_version(a: Object, b: Object) -> bool:
    return _versionless(a) == _versionless(b)


def _versionless(obj: Object) -> Object:
    return obj | {"metadata": {k: v for k, v in obj["metadata"].items() if k != "resourceVersion"}}
