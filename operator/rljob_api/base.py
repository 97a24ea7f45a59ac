"""The base of every model of the contract."""

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


class Model(BaseModel):
    """snake_case in Python, camelCase in YAML and JSON; unknown fields are refused; instances are immutable."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True, use_attribute_docstrings=True
    )

    def dump(self) -> dict[str, object]:
        """The JSON form: camelCase keys, unset optional fields left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)

    def dump_json(self) -> str:
        return self.model_dump_json(by_alias=True, exclude_none=True)


class Wire(Model):
    """What another version of us may have written: fields that we do not know are ignored, the protocol number decides."""

    model_config = ConfigDict(extra="ignore")
