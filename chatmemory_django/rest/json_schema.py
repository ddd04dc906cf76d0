"""
The JSON Schema of a type. A struct or an enum is a component of its own; everything else is written where it stands.

msgspec has this, too, but what it made of our types brought the garbage collector down (0.22 on Python 3.13).
"""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import Enum
from typing import Annotated, Any, Literal, Union, get_args, get_origin
from uuid import UUID

import msgspec
from msgspec import Meta, UnsetType
from msgspec.structs import FieldInfo

PLAIN: dict[Any, dict[str, Any]] = {
    Any: {},
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bytes: {"type": "string", "contentEncoding": "base64"},
    UUID: {"type": "string", "format": "uuid"},
    datetime: {"type": "string", "format": "date-time"},
    type(None): {"type": "null"},
}


def reference(name: str) -> dict[str, Any]:
    """A reference to the component *name*."""
    return {"$ref": f"#/components/schemas/{name}"}


def schema_of(hint: Any, components: dict[str, Any]) -> dict[str, Any]:
    """The schema of the type *hint*; what it refers to is added to *components*."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return {**schema_of(arguments[0], components), **_constraints(arguments)}
    if origin in {Union, types.UnionType}:
        return _union([each for each in arguments if each is not UnsetType], components)
    if origin is Literal:
        return {"type": "string", "enum": list(arguments)}
    if origin in {list, tuple, Sequence}:
        size = {"minItems": 1, "maxItems": 1} if origin is tuple and len(arguments) == 1 else {}
        return {"type": "array", "items": schema_of(arguments[0], components), **size}
    if origin in {dict, Mapping}:
        return {"type": "object", "additionalProperties": {}}
    if hint in PLAIN:
        return dict(PLAIN[hint])
    if hint.__name__ not in components:
        components[hint.__name__] = {}  # it may refer to itself
        description = {"description": hint.__doc__.strip().split("\n\n")[0].replace("``", "`")}
        if issubclass(hint, Enum):
            components[hint.__name__] = {**description, "type": "string", "enum": [each.value for each in hint]}
        else:
            components[hint.__name__] = {**description, **_struct(hint, components)}
    return reference(hint.__name__)


def _constraints(annotated: Sequence[Any]) -> dict[str, Any]:
    base, *others = annotated
    is_array = get_origin(base) in {list, tuple}
    names = {
        "ge": "minimum",
        "le": "maximum",
        "min_length": "minItems" if is_array else "minLength",
        "max_length": "maxItems" if is_array else "maxLength",
        "pattern": "pattern",
        "description": "description",
    }
    given = {name: getattr(meta, key) for meta in others if isinstance(meta, Meta) for key, name in names.items()}
    return {name: value for name, value in given.items() if value is not None}


def _union(members: Sequence[Any], components: dict[str, Any]) -> dict[str, Any]:
    structs = [each for each in members if isinstance(each, type) and issubclass(each, msgspec.Struct)]
    schemas = [schema_of(each, components) for each in members if each not in structs]
    if len(structs) > 1:
        schemas.insert(0, discriminated(structs, components))
    else:
        schemas = [schema_of(each, components) for each in structs] + schemas
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


def discriminated(structs: Sequence[type[msgspec.Struct]], components: dict[str, Any]) -> dict[str, Any]:
    """The schema of one of *structs*, which of them a tag tells."""
    references = [schema_of(each, components) for each in structs]
    return {
        "oneOf": references,
        "discriminator": {
            "propertyName": structs[0].__struct_config__.tag_field,
            "mapping": {
                str(each.__struct_config__.tag): its["$ref"] for each, its in zip(structs, references, strict=True)
            },
        },
    }


def _struct(struct: type[msgspec.Struct], components: dict[str, Any]) -> dict[str, Any]:
    config = struct.__struct_config__
    properties: dict[str, Any] = {}
    required = []
    if config.tag_field:
        properties[config.tag_field] = _inside({"type": "string", "enum": [config.tag]})
        required.append(config.tag_field)
    field: FieldInfo
    for field in msgspec.structs.fields(struct):
        properties[field.encode_name] = _inside(schema_of(field.type, components))
        if field.required:
            required.append(field.encode_name)
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**schema, "required": required} if required else schema


def _inside(schema: dict[str, Any]) -> dict[str, Any]:
    """*schema* for a property: an enum stands inside of something else, or drf-spectacular makes a component of it."""
    return {"allOf": [schema]} if "enum" in schema else schema
