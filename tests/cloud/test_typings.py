"""What tools/typings says of Google's clients is what Google's own classes have; pyright believes it."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import proto
import pytest
from google.cloud import compute_v1, storage

TYPINGS = Path(__file__).parents[2] / "tools/typings/google/cloud"
PLAIN = {
    proto.STRING: "str", proto.BOOL: "bool", proto.DOUBLE: "float", proto.FLOAT: "float",
    proto.INT32: "int", proto.INT64: "int", proto.UINT32: "int", proto.UINT64: "int",
}  # fmt: skip


def _classes(package: str) -> Iterator[ast.ClassDef]:
    module = ast.parse((TYPINGS / package / "__init__.pyi").read_text(encoding="utf-8"))
    return (each for each in module.body if isinstance(each, ast.ClassDef))


MESSAGES = [each for each in _classes("compute_v1") if [ast.unparse(base) for base in each.bases] == ["Message"]]
CLIENTS = [each for each in _classes("compute_v1") if [ast.unparse(base) for base in each.bases] == ["_Client"]]


def _annotation(message: type[proto.Message], name: str) -> str:
    """The type of a message's field, as the typings write it."""
    field = message.meta.fields[name]
    entry = message.pb().DESCRIPTOR.fields_by_name[field.name].message_type
    if entry is not None and entry.GetOptions().map_entry:
        return "MutableMapping[str, str]"
    kind = PLAIN.get(field.proto_type) or (field.message or field.enum)
    kind = kind if isinstance(kind, str) else kind.__name__
    return f"MutableSequence[{kind}]" if field.repeated else kind


@pytest.mark.parametrize("described", MESSAGES, ids=lambda each: each.name)
def test_fields_of_messages(described: ast.ClassDef) -> None:
    message = getattr(compute_v1, described.name)
    said = {
        line.target.id: ast.unparse(line.annotation)
        for line in described.body
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
    }
    assert said == {name: _annotation(message, name) for name in said}


@pytest.mark.parametrize("described", CLIENTS, ids=lambda each: each.name)
def test_methods_of_clients(described: ast.ClassDef) -> None:
    client, answered = getattr(compute_v1, described.name), {each.name for each in MESSAGES}
    for method in (line for line in described.body if isinstance(line, ast.FunctionDef)):
        own = str(inspect.signature(getattr(client, method.name)).return_annotation)
        said = ast.unparse(method.returns) if method.returns else ""
        if said.startswith("Pager"):
            assert own.endswith("Pager'>"), f"{described.name}.{method.name} answers {own}"
        else:
            assert said in answered
            assert own.endswith(f".{said}'>"), f"{described.name}.{method.name} answers {own}"


@pytest.mark.parametrize("described", list(_classes("storage")), ids=lambda each: each.name)
def test_methods_and_properties_of_storage(described: ast.ClassDef) -> None:
    own = getattr(storage, described.name, None)
    if own is None:  # of what the client itself names only in private
        assert described.name.startswith("_")
        return
    instance_only = {"name", "bucket"} if described.name == "Blob" else {"name"}
    for line in described.body:
        name = line.name if isinstance(line, ast.FunctionDef) else line.target.id  # type: ignore[union-attr]
        assert name in instance_only or hasattr(own, name), f"{described.name} has no {name}"
