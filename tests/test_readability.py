"""What .ci/readability and .ci/pages count, in code that is counted by hand."""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = Path(__file__).parents[1] / ".ci"
CODE = '''
"""A docstring, which is no code."""
# as little as a comment
a = 1 if b else 2
c = 1 if b else (2 if d else 3)
e, f = g, h
if (n := len(a)) > 3:
    print("s" * (n != 1))
for told in a: pass
hidden: bool = True
found = hidden = False
'''


@pytest.fixture(scope="module")
def readability() -> ModuleType:
    loader = SourceFileLoader("readability", str(SCRIPTS / "readability"))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    sys.modules[loader.name] = module  # where data classes look for their annotations
    loader.exec_module(module)
    return module


def test_counts_what_is_hard_to_read(readability: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "code.py"
    file.write_text(CODE)
    source = readability.Source(file)
    assert sorted((hit.measure, hit.line, hit.name) for hit in source.hits()) == [
        ("conditional", 4, ""),
        ("conditional", 5, ""),
        ("conditional", 5, ""),
        ("nested", 5, ""),
        ("packed", 6, ""),
        ("times", 8, ""),
        ("vague", 9, "told"),
        ("walrus", 7, ""),
    ]
    assert sorted(source.lines) == [4, 5, 6, 7, 8, 9, 10, 11]


def test_counts_decisions_inside_lines(readability: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "code.py"
    one = "    x = a or b or c\n    y = [z for z in x if z and b]\n    if x: return 1 if y else 2\n"  # 1 + 2 + 3 + 2
    file.write_text(
        f"def simple():\n{one}\n\ndef complicated():\n{one}    while a or b or c: pass\n"
    )  # and 3
    assert [hit.name for hit in readability.Source(file).hits() if hit.measure == "complex"] == [
        "complicated"
    ]


def test_fails_above_a_limit(
    readability: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "code.py").write_text("a = b\nif a:\n    c = 1 if b else 2\n")
    (limit,) = readability.failures(tmp_path)
    assert limit == "conditional per 1,000 lines: 333.33, at most 22"
    (tmp_path / "code.py").write_text("a = b\n" * (readability.FILE_LENGTH + 1))
    (limit,) = readability.failures(tmp_path)
    assert (
        limit == f"code.py has {readability.FILE_LENGTH + 1} lines of code, at most {readability.FILE_LENGTH}"
    )
    assert "expressions per line" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("script", "mistake", "problem"),
    [
        ("comparison.js", "undefinedName();", "undefinedName is not defined (no-undef)"),
        ("parts.js", "function usedNowhere() {}", "`usedNowhere` is never used (no-unused-vars)"),
    ],
)
def test_scripts_of_pages_are_linted_together(
    tmp_path: Path, script: str, mistake: str, problem: str
) -> None:
    (tmp_path / ".ci").mkdir()
    shutil.copy(SCRIPTS / "pages", tmp_path / ".ci")
    pages = tmp_path / "ebcli/pages"
    shutil.copytree(SCRIPTS.parent / "ebcli/pages", pages)
    command = [sys.executable, tmp_path / ".ci/pages"]
    lines = (pages / script).read_text(encoding="utf-8").count("\n")
    with (pages / script).open("a", encoding="utf-8") as file:
        file.write(f"{mistake}\n")
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert result.stderr == f"{script}:{lines + 1}: {problem}\n"
