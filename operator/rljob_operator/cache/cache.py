"""One kind of object: the newest version seen of each, with an index by group.

Why reconciles may decide on the cache instead of reading live:

- An object never goes back. A version older than the known one is ignored, whether it comes from a watch, a list or the answer to one of our own
  writes, and so is a version older than the object's deletion.
- A cache that lags therefore shows an earlier state of the cluster, never a wrong one. Every write carries the uid or resourceVersion that was
  seen, so it fails (Conflict) if that state has passed. The status always carries its resourceVersion, and every intent is written there first. We
  are its only writer (see kube/leader_election.py) and cache our own writes, so the same attempt is never opened twice.
- *Absence* (of a member's pod, a heartbeat, a node) is also what a broken watch looks like, so it is confirmed by a live read before anything is
  done about it (see model/observer.py).
"""

import logging
import operator
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from rljob_api import names
from rljob_api.callbacks import always, nothing
from rljob_operator.kube.api import Key, Object

log = logging.getLogger(__name__)

DELETIONS = 4096
"""Deletions of a kind that are remembered: many times those that happen while a list or an answer is on its way."""

SHORT, SHARED = 100, 2**14
"""Characters of texts that objects share, at most, and number of such texts that are known at a time: many times those of all schemas."""


def is_ours(obj: Object) -> bool:
    """Whether the object has our label. Anybody may set it, see `children.controls`."""
    return (obj["metadata"].get("labels") or {}).get(names.LABEL_MANAGED_BY) == names.MANAGED_BY


@dataclass(frozen=True, slots=True)
class Entry[T]:
    """One object."""

    value: T
    version: int
    uid: str
    group: Key | None
    """Key of the index: for children, the job that they belong to."""


def job_of(obj: Object) -> Key | None:
    """The job that the object's label names."""
    name = (obj["metadata"].get("labels") or {}).get(names.LABEL_JOB)
    return (obj["metadata"].get("namespace", ""), name) if name else None


class Cache[T]:
    """`transform(object, before)` makes the value of an entry; `before` is the value of the previous version of the same object, or None. An object
    for which it raises is logged and ignored.

    `predicate(before, after)` says whether a change calls for a reconcile. Methods that change the cache return the groups for which it does.

    `wanted(object)`: whether the object belongs into the cache.
    """

    def __init__(
        self,
        transform: Callable[[Object, T | None], T],
        predicate: Callable[[T, T], bool] = operator.ne,
        group: Callable[[Object], Key | None] = job_of,
        wanted: Callable[[Object], bool] = always,
    ) -> None:
        self._transform, self._predicate, self._group, self._wanted = transform, predicate, group, wanted
        self._objects: dict[Key, Entry[T]] = {}
        self._groups: dict[Key, dict[Key, Entry[T]]] = {}
        self._deleted: dict[Key, int] = {}
        """Versions of the newest deletions, oldest first."""
        self._listed: dict[str | None, int] = {}
        """Versions of the newest complete lists, by namespace; None: of all namespaces."""
        self._follow: Callable[[Key, T | None], None] = nothing

    def follow(self, call: Callable[[Key, T | None], None]) -> None:
        """`call` gets every change: key and value, or None for an object that is gone."""
        self._follow = call

    def __len__(self) -> int:
        return len(self._objects)

    def get(self, key: Key) -> Entry[T] | None:
        return self._objects.get(key)

    def of(self, group: Key) -> Mapping[Key, Entry[T]]:
        """Entries of a group, by namespace and name: a group may span namespaces."""
        return self._groups.get(group, {})

    def values(self) -> list[T]:
        return [entry.value for entry in self._objects.values()]

    def groups_of(self, wanted: Callable[[T], bool]) -> set[Key]:
        """Groups with an entry whose value is wanted."""
        return {entry.group for entry in self._objects.values() if entry.group and wanted(entry.value)}

    def put(self, obj: Object, known: T | None = None) -> set[Key]:
        """Takes the object, unless a newer version of it, or its deletion, is known. `known`: the value, if there is no need to make it."""
        if not self._wanted(obj):
            return self.discard(obj)
        key, version = key_of(obj), version_of(obj)
        old = self._objects.get(key)
        if version <= (old.version if old else self._gone(key)):
            return set()
        same = old if old and old.uid == obj["metadata"]["uid"] else None
        try:
            value = self._transform(obj, same.value if same else None) if known is None else known
        except Exception:  # no foreign object may end or stall the operator
            log.exception("%s %s/%s cannot be read and is ignored", obj.get("kind"), *key)
            return set()
        new = Entry(value, version, obj["metadata"]["uid"], self._group(obj))
        self._forget(key)
        self._objects[key] = new
        if new.group:
            self._groups.setdefault(new.group, {})[key] = new
        self._follow(key, value)
        silent = same and same.group == new.group and not self._predicate(same.value, value)
        return set() if silent else _groups(old, new)

    def revise(self, key: Key, change: Callable[[T], T]) -> set[Key]:
        """Changes the value of an entry by what is known besides its object. The next version of the object makes a new value."""
        old = self._objects.get(key)
        if old is None:
            return set()
        value = change(old.value)
        if value == old.value:
            return set()
        new = self._objects[key] = replace(old, value=value)
        if new.group:
            self._groups[new.group][key] = new
        self._follow(key, value)
        return _groups(new) if self._predicate(old.value, value) else set()

    def remove(self, obj: Object) -> set[Key]:
        """The watch reports a deletion, whose version is newer than the object's. It is remembered, since a list that was begun before, or the
        answer to a write, may still arrive with the object in it. A successor of the same name is newer still, and stays.
        """
        key = key_of(obj)
        self._bury(key, version_of(obj))
        return self.discard(obj)

    def discard(self, obj: Object) -> set[Key]:
        """The object, in this version, does not belong into the cache any more."""
        key = key_of(obj)
        old = self._objects.get(key)
        return self.delete(key) if old and version_of(obj) >= old.version else set()

    def delete(self, key: Key) -> set[Key]:
        """A live read has just found nothing under this name: the version that is known is gone."""
        old = self._forget(key)
        if old:
            self._bury(key, old.version)
            self._follow(key, None)
        return _groups(old)

    def prune(self, listed: Set[Key], version: str, namespace: str | None) -> set[Key]:
        """Drops what a complete list of `namespace` (None: of all) lacks, unless it is newer than the list. The list's version is remembered: what is
        not known now and is not newer was deleted, whoever still brings it."""
        self._listed[namespace] = int(version)
        changed = set[Key]()
        for key, entry in list(self._objects.items()):
            in_scope = namespace is None or key[0] == namespace
            if in_scope and key not in listed and entry.version <= int(version):
                changed |= self.delete(key)
        return changed

    def unlist(self, namespace: str | None) -> set[Key]:
        """Drops all objects of `namespace` (None: of all), since the API server does not know their kind. They may come back in the same
        version, if it was a proxy that said so."""
        self._listed.pop(namespace, None)
        changed = set[Key]()
        for key in [key for key in self._objects if namespace is None or key[0] == namespace]:
            changed |= _groups(self._forget(key))
            self._follow(key, None)
        return changed

    def clear(self) -> None:
        """Forgets all objects, and what is known to be gone: a list comes first after it."""
        for key in list(self._objects):
            self._forget(key)
            self._follow(key, None)
        self._deleted.clear()
        self._listed.clear()

    def _gone(self, key: Key) -> int:
        """The newest version in which an object that is not known is known to be gone."""
        return max(self._deleted.get(key, 0), self._listed.get(None, 0), self._listed.get(key[0], 0))

    def _bury(self, key: Key, version: int) -> None:
        version = max(version, self._deleted.pop(key, 0))
        self._deleted[key] = version
        if len(self._deleted) > DELETIONS:
            del self._deleted[next(iter(self._deleted))]

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
    """resourceVersions of a kind are integers that grow: etcd's revisions, and guaranteed for every API server by KEP-5504."""
    return int(obj["metadata"]["resourceVersion"])


def strip_managed_fields(obj: Object, *dropped: str) -> Object:
    """A copy without managedFields, which are most of many objects, and without the top-level fields `dropped`. Its texts are shared."""
    meta = {k: v for k, v in obj["metadata"].items() if k != "managedFields"}
    kept: Object = share_texts({k: v for k, v in obj.items() if k not in dropped} | {"metadata": meta})
    return kept


def share_texts(value: Any) -> Any:
    """A copy of JSON that has its keys and short texts in common with other copies: most of them are in each object of a kind, and Python's decoder
    makes them anew for each object."""
    if isinstance(value, dict):
        return {_shared(key): share_texts(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [share_texts(inner) for inner in value]
    return _shared(value) if isinstance(value, str) else value


def _shared(text: str) -> str:
    """Long texts are let go with their objects: users write them, also as keys."""
    return _first(text) if len(text) <= SHORT else text


@lru_cache(SHARED)
def _first(text: str) -> str:
    """The equal text that came first, as long as texts of its kind are seen more often than others."""
    return text


def same_but_version(a: Object, b: Object) -> bool:
    return _versionless(a) == _versionless(b)


def _versionless(obj: Object) -> Object:
    return obj | {"metadata": {k: v for k, v in obj["metadata"].items() if k != "resourceVersion"}}
