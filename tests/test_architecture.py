"""The import rules of ARCHITECTURE.md."""

import ast
import dataclasses
import functools
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in (ROOT / "ebcli").rglob("*.py")
}
ROOMS = {
    "eb": {"heads", "layouts", "imports", "errors"},
    "datatypes": {"errors"},
    "pages": set(),
    "files": {"datatypes", "imports", "errors"},
    "methods": {"eb", "heads", "layouts", "imports", "errors"},
    "models": {"eb", "heads", "layouts", "files", "datatypes", "imports", "errors"},
    "drawing": {"pages", "eb", "files", "datatypes", "errors"},
    "run": {
        "pages",
        "drawing",
        "methods",
        "models",
        "eb",
        "heads",
        "files",
        "datatypes",
        "workers",
        "imports",
        "errors",
    },
    "evaluate": {"methods", "drawing", "models", "eb", "files", "datatypes", "imports", "errors"},
    "gallery": {"pages", "drawing", "files", "datatypes", "workers", "imports", "errors"},
    "serve": {"pages", "run", "drawing", "methods", "models", "files", "datatypes", "workers", "errors"},
    "cli": set(
        "serve gallery run evaluate drawing methods models eb files datatypes workers imports errors".split()
    ),
}
TORCH_FREE = [
    name
    for name in FILES
    if re.match(
        r"ebcli\.(datatypes|pages|files|drawing|gallery|workers$|run\.(plan|pipeline|reading|rendering)$)",
        name,
    )
    and name != "ebcli.drawing.api"
]


class Import(NamedTuple):
    target: str
    typing: bool  # under `if TYPE_CHECKING`
    late: bool  # in a function


def imports(node: ast.AST, typing: bool = False, late: bool = False) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (Import(alias.name, typing, late) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            for alias in child.names:
                submodule = f"{child.module}.{alias.name}"
                yield Import(submodule if submodule in FILES else child.module or "", typing, late)
        else:
            guarded = isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"
            yield from imports(child, typing or guarded, late or isinstance(child, ast.FunctionDef))


@functools.cache
def imports_of(name: str) -> set[Import]:
    return set(imports(ast.parse(FILES[name].read_text(encoding="utf-8"))))


def room(module: str) -> str:
    return f"{module}.".split(".")[1]


@pytest.mark.parametrize("name", sorted(name for name in FILES if room(name) in ROOMS))
def test_files_import_only_rooms_below(name: str) -> None:
    for target in {i.target for i in imports_of(name)}:
        if target.partition(".")[0] == "ebcli" and room(target) != room(name):
            assert room(target) in ROOMS[room(name)], f"{name} imports {target}"


def graph(late: bool) -> dict[str, set[str]]:
    return {
        name: {
            i.target for i in imports_of(name) if i.target in FILES and not i.typing and (late or not i.late)
        }
        for name in FILES
    }


def test_imports_have_no_circle() -> None:
    TopologicalSorter(graph(late=True)).prepare()  # raises CycleError


def test_imports_have_at_most_ten_floors() -> None:
    """Of the imports at the top of files. `eb`, a closed library, counts as one floor above `imports` and `errors`."""
    below, floors = graph(late=False), dict[str, int]()
    for name in TopologicalSorter(graph(late=False)).static_order():
        floors[name] = (
            3 if room(name) == "eb" else 1 + max((floors[target] for target in below[name]), default=0)
        )
    assert max(floors.values()) <= 10, sorted(floors.items(), key=lambda item: -item[1])[:12]


def test_some_files_import_no_torch() -> None:
    for name in TORCH_FREE:
        seen, waiting = set(), {name}
        while waiting:
            module = waiting.pop()
            seen.add(module)
            imported = imports_of(module) if module in FILES else ()
            found = {i.target for i in imported if not i.typing and not i.late}
            waiting |= found - seen
        assert not seen & {"torch", "torchvision"}, f"{name} imports torch"
    code = f"import sys, {', '.join(TORCH_FREE)}; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout == "False\n"


def test_every_room_has_its_rule() -> None:
    rooms = [path.name for path in (ROOT / "ebcli").iterdir() if path.is_dir() and path.name != "__pycache__"]
    assert sorted(rooms) == sorted(ROOMS)


def test_files_named_in_the_description_exist() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    named = re.findall(r"`((?:ebcli|tests)/[\w/.]*)`", text)
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []


def data_classes() -> Iterator[tuple[str, type]]:
    for name in FILES:
        if room(name) != "eb" and name != "ebcli.__main__":
            for thing in vars(importlib.import_module(name)).values():
                if dataclasses.is_dataclass(thing) and isinstance(thing, type) and thing.__module__ == name:
                    yield name, thing


def test_long_data_classes_are_made_by_keyword() -> None:
    """Of more than five fields, at most the first three can be given by position."""
    lengths = {thing: [one.kw_only for one in dataclasses.fields(thing)] for _, thing in data_classes()}
    assert lengths
    assert [thing for thing, given in lengths.items() if len(given) > 5 and given.count(False) > 3] == []


def test_a_name_of_a_class_means_one_thing() -> None:
    named: dict[str, set[str]] = {}
    for name, path in FILES.items():
        for node in ast.parse(path.read_text(encoding="utf-8")).body if room(name) != "eb" else ():
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                named.setdefault(node.name, set()).add(name)
    assert {name: files for name, files in named.items() if len(files) > 1} == {}
