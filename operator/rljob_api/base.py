"""The base of every model of the contract, and what stands in it for a value that cannot be read."""

from collections.abc import Mapping
from typing import Any, Final, NoReturn

from pydantic import (
    BaseModel,
    ConfigDict,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_validator,
)
from pydantic.alias_generators import to_camel
from typing_extensions import Self


class Undecidable(Exception):
    """What was asked depends on a value that cannot be read."""


class Unreadable:
    """Every use raises Undecidable; only `is` and isinstance are answered."""


def undecidable(*_: object) -> NoReturn:
    raise Undecidable


for _use in (
    *("bool", "eq", "ne", "lt", "le", "gt", "ge", "hash", "str", "repr", "format", "fspath", "index", "int", "float"),
    *("len", "iter", "contains", "getitem", "getattr", "round", "neg", "abs", "pow", "rpow"),
    *("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "floordiv", "rfloordiv", "mod", "rmod"),
):
    setattr(Unreadable, f"__{_use}__", undecidable)

UNREADABLE: Final = Unreadable()

NO_NAMES = set[str]()
"""The empty set of fields that were set, which all models share."""
LENIENT = "lenient"
"""Context of a validation that never fails: fields that are missing or cannot be read are UNREADABLE, unknown ones are left out."""


class _Contract(BaseModel):
    """snake_case in Python, camelCase in YAML and JSON; instances are immutable."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, frozen=True, use_attribute_docstrings=True
    )

    def model_post_init(self, context: Any, /) -> None:
        """Drops the names of the fields that were set. Nothing reads them, and they were a quarter of what the operator caches of a job."""
        object.__setattr__(self, "__pydantic_fields_set__", NO_NAMES)

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        """Itself, since it is immutable: pydantic copies the defaults of fields, which were a third of the time that it takes to read a spec."""
        return self

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy with these fields in place of its own. Nothing else is copied: what cached properties have computed is true of the original only."""
        cls = type(self)
        copied, fields = cls.__new__(cls), {**self.__dict__, **(update or {})}
        if len(fields) > len(cls.__pydantic_fields__):
            fields = {name: fields[name] for name in cls.__pydantic_fields__}
        object.__setattr__(copied, "__dict__", fields)
        object.__setattr__(copied, "__pydantic_extra__", None)
        object.__setattr__(copied, "__pydantic_private__", None)
        object.__setattr__(copied, "__pydantic_fields_set__", NO_NAMES)
        return copied

    def dump(self) -> dict[str, object]:
        """The JSON form: camelCase keys, unset optional fields left out. Raises Undecidable when a value in it cannot be read."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True, fallback=undecidable)

    def dump_json(self) -> str:
        return self.model_dump_json(by_alias=True, exclude_none=True)


class Model(_Contract):
    """What a user writes. Unknown fields are refused. As for the API server, null is a field that is not written, and a text is no number."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: Any, info: ValidationInfo) -> Any:
        """Drops known fields that are null. An unknown field is refused, whatever it holds."""
        if not isinstance(given, dict):
            return given
        if any(value is None for value in given.values()):
            known = {*cls.model_fields, *(field.alias for field in cls.model_fields.values())}
            given = {k: v for k, v in given.items() if v is not None or k not in known}
        return cls._completed(given) if info.context == LENIENT else given

    @classmethod
    def _completed(cls, given: dict[str, Any]) -> dict[str, Any]:
        """The known fields, with UNREADABLE for required ones that are missing."""
        required = {str(f.alias): UNREADABLE for f in cls.model_fields.values() if f.is_required()}
        return required | {f.alias: given[f.alias] for f in cls.model_fields.values() if f.alias in given}

    @field_validator("*", mode="wrap")
    @classmethod
    def _read(cls, given: Any, read: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
        try:
            return given if given is UNREADABLE else read(given)
        except ValidationError:
            if info.context == LENIENT:
                return UNREADABLE
            raise


class KubernetesObject(_Contract):
    """A part of a Pod that a user writes, with all fields that Kubernetes has: it would drop others without a word."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Wire(_Contract):
    """What another release of rljob may have written. Unknown fields are ignored; the protocol number says whether we understand it."""

    model_config = ConfigDict(extra="ignore")
