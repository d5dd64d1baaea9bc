"""The permissions of every call: a row for each call, and the documented roles that are made of the rows."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import transient_magics
from transient_magics.cloud.calling import failures
from transient_magics.cloud.calling.clients import Clients
from transient_magics.cloud.calling.permissions import (
    ADVICE,
    COMPUTE,
    EXTERNAL_ADDRESS,
    OWN_IMAGE,
    STORAGE,
    Purpose,
    permissions_for,
)
from transient_magics.cloud.examination.examine import ALL
from transient_magics.spec.project import BUCKET_ROLE, CONTROLLER_ROLE, ROLES, USER_ROLE

PACKAGE = Path(transient_magics.__file__).parent
PAGE = (PACKAGE.parent / "docs" / "accounts.md").read_text(encoding="utf-8")
CLIENTS = frozenset(
    re.findall(r"self\.(\w+) = compute_v1", (PACKAGE / "cloud/calling/clients.py").read_text(encoding="utf-8"))
)


class Uses(ast.NodeVisitor):
    """The methods that a module calls on the clients of `Clients`, as `service.method`.

    Followed are names that a client is given to, and clients that are handed to functions of the module. A request
    without an end is refused by review: each has `**PLAIN`, or a mapping with it. One whose client is not found here
    is in `unresolved`.
    """

    def __init__(self, module: ast.Module) -> None:
        self.found: set[str] = set()
        self.unresolved: set[str] = set()
        self._parameters: dict[tuple[str, int], set[str]] = {}
        self._names: dict[str, set[str]] = {}
        self._functions = {node.name: node for node in ast.walk(module) if isinstance(node, _FUNCTIONS)}
        bodies = [module, *(node for node in module.body if isinstance(node, ast.ClassDef))]
        outermost = [node for body in bodies for node in body.body if isinstance(node, _FUNCTIONS)]
        for _ in range(3):  # what is handed on is handed on once more
            self.found.clear()
            self.unresolved.clear()
            for function in outermost:  # with the functions inside, which see its names
                self._walk(function)

    def _walk(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._names = {}
        for index, argument in enumerate(function.args.args):
            if services := self._parameters.get((function.name, index)):
                self._names[argument.arg] = services
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and len(node.targets) == 1:
                self._assign(node.targets[0], node.value)
            elif isinstance(node, ast.AnnAssign) and node.value:
                self._assign(node.target, node.value)
        for node in ast.walk(function):
            if isinstance(node, ast.Call):
                self._call(node)

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            for one, other in zip(target.elts, value.elts, strict=True):
                self._assign(one, other)
        elif isinstance(target, ast.Name) and (services := self._services(value)):
            self._names[target.id] = self._names.get(target.id, set()) | services  # of both branches

    def _services(self, value: ast.expr) -> set[str]:
        """The services whose client an expression is."""
        match value:
            case ast.IfExp(body=body, orelse=other):
                return self._services(body) | self._services(other)
            case ast.Name(id=name):
                return self._names.get(name, set())
            case ast.Attribute(value=holder, attr=name) if name in CLIENTS and "clients" in ast.unparse(holder):
                return {name}
        return set()

    def _call(self, node: ast.Call) -> None:
        plain = any(keyword.arg is None and _bounded(keyword.value) for keyword in node.keywords)
        called = ast.unparse(node.func).rpartition(".")[2]
        if isinstance(node.func, ast.Attribute):
            services = self._services(node.func.value)
            self.found |= {f"{service}.{node.func.attr}" for service in services}
            if plain and not services:
                self.unresolved.add(ast.unparse(node.func))
        if called in self._functions:
            own = self._functions[called].args.args
            shift = int(bool(own) and own[0].arg == "self")
            for index, argument in enumerate(node.args):
                if services := self._services(argument):
                    self._parameters.setdefault((called, index + shift), set()).update(services)


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def _bounded(value: ast.expr) -> bool:
    return isinstance(value, ast.Name) and value.id in ("PLAIN", "whole")


def modules() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if "clients." in text and path.name != "clients.py":
            yield path.relative_to(PACKAGE).as_posix(), ast.parse(text)


def test_every_call_of_compute_engine_has_its_permissions_in_the_table_and_no_row_is_idle() -> None:
    found: set[str] = set()
    for name, module in modules():
        uses = Uses(module)
        assert not uses.unresolved, f"{name}: which client is asked here?"
        found |= uses.found
    assert found == set(COMPUTE)
    assert set(CLIENTS) == {name.partition(".")[0] for name in COMPUTE}
    assert set(vars(Clients)) >= {"close"}


def test_the_walk_sees_a_call_without_a_row() -> None:
    source = (
        "async def f(self):\n    asked = self._calls.clients.images\n    await call(lambda: asked.resize(1, **PLAIN))"
    )
    assert Uses(ast.parse(source)).found == {"images.resize"}
    hidden = "async def f(x):\n    await call(lambda: x.resize(1, **PLAIN))"
    assert Uses(ast.parse(hidden)).unresolved == {"x.resize"}


def test_every_call_of_cloud_storage_has_its_permissions_in_the_table() -> None:
    found: set[str] = set()
    for node in ast.walk(ast.parse((PACKAGE / "cloud/storage.py").read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            mappings = [ast.unparse(keyword.value) for keyword in node.keywords if keyword.arg is None]
            found |= {node.func.attr} if "_PLAIN" in mappings else set()
    assert found == set(STORAGE)


def test_advice_has_its_permissions_in_the_table() -> None:
    text = (PACKAGE / "cloud/advice.py").read_text(encoding="utf-8")
    assert set(re.findall(r'self\._answer\(zone, "(\w+)"', text)) == set(ADVICE)


def test_the_roles_have_what_the_calls_take() -> None:
    run = {*permissions_for({Purpose.RUN}), *EXTERNAL_ADDRESS, *OWN_IMAGE}
    assert set(ROLES[CONTROLLER_ROLE]) == run
    assert set(ROLES[USER_ROLE]) == set(ALL)
    assert set(BUCKET_ROLE) >= set(permissions_for({Purpose.BUCKET})) - {f"storage.buckets.{verb}" for verb in _BUCKETS}


_BUCKETS = ("create", "get", "list")


@pytest.mark.parametrize("role", ROLES)
def test_the_page_has_the_role_as_the_calls_make_it(role: str) -> None:
    text = PAGE.replace("\\\n", "")
    (written,) = re.findall(rf"gcloud iam roles create {role} --project my-project --permissions ([a-zA-Z.,]+)", text)
    assert written.split(",") == list(ROLES[role]), f"docs/accounts.md should have:\n{command(role)}"


def test_the_page_says_what_building_an_image_takes() -> None:
    added = sorted(set(permissions_for({Purpose.BAKE})) - set(ROLES[USER_ROLE]))
    assert all(f"`{name}`" in PAGE for name in (*added, *permissions_for({Purpose.ADVICE})))


def command(role: str) -> str:
    """The command that makes a role, in lines of the page."""
    lines = [f"gcloud iam roles create {role} --project my-project --permissions "]
    for name in ROLES[role]:
        separator = "" if lines[-1].endswith("--permissions ") else ","
        if len(lines[-1]) + len(name) > 110 or lines[-1].endswith("--permissions "):
            lines[-1] += f"{separator}\\"
            lines.append(name)
        else:
            lines[-1] += f"{separator}{name}"
    return "\n".join(lines)


def test_each_permission_has_a_role_that_brings_it() -> None:
    for name in (*ALL, *permissions_for({Purpose.BAKE, Purpose.ADVICE})):
        assert failures.role_of(name) in failures.NAMES
