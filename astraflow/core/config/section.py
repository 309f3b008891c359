"""The base of every configuration section: frozen, no unknown key, a docstring under each field."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import msgspec
from pydantic import BaseModel, BeforeValidator, ConfigDict, InstanceOf, PlainSerializer, WithJsonSchema

from astraflow.errors import DataError, suggestion

S = TypeVar("S", bound=msgspec.Struct)


class Section(BaseModel):
    """A group of keys. Docstrings under fields become the reference documentation."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


class OpenSection(Section):
    """A section that passes its further keys on to a user's function or class, which is asked whether it takes them."""

    model_config = ConfigDict(extra="allow")

    @property
    def keywords(self) -> dict[str, Any]:
        """The keys that are passed on."""
        return dict(self.model_extra or {})


def struct_field(struct: type[S]) -> Any:
    """Return a pydantic field type for a msgspec struct of core.data, checked by its own rules."""

    def parse(value: Any) -> S:
        if isinstance(value, struct):
            return value
        fields = list(struct.__struct_fields__)
        for key in value if isinstance(value, dict) else ():
            if key not in fields:
                raise ValueError(f"{key}: unknown key{suggestion(key, fields)}; known here: {', '.join(fields)}")
        try:
            parsed = msgspec.convert(value, struct, strict=True)
            getattr(parsed, "check", lambda: None)()
        except (msgspec.ValidationError, DataError) as error:
            raise ValueError(str(error)) from error
        return parsed

    return Annotated[
        InstanceOf[struct],  # type: ignore[valid-type, misc]
        BeforeValidator(parse),
        PlainSerializer(lambda value: msgspec.to_builtins(value)),
        WithJsonSchema(msgspec.json.schema_components([struct])[1][struct.__name__]),
    ]
