"""Imports on demand, and the exported names."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import pkgutil
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import version
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from stub_run import heavy_imports, run_python

import ebcli.evaluate
import ebcli.models
from ebcli.errors import ConfigurationError, import_optional

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["models"], [], ["--top-k", "x"]])
def test_commands_without_a_network_do_not_import_torch(arguments: list[str]) -> None:
    assert heavy_imports("ebcli.cli.saliency", arguments) == "imported: []"


def test_help_imports_only_click() -> None:
    """``--help`` takes 0.2 s, too little to import a scientific package."""
    third_party = run_python(
        "import sys\n"
        "from ebcli.cli.saliency import main\n"
        "try:\n"
        "    main(['--help'])\n"
        "except SystemExit:\n"
        "    pass\n"
        "roots = {name.partition('.')[0] for name in sys.modules}\n"
        "paths = {n for n in roots if 'site-packages' in (getattr(sys.modules.get(n), '__file__', None) or '')}\n"
        "print('imported:', sorted(n for n in paths if not n.startswith('_')))\n"
    )
    assert third_party.splitlines()[-1] == "imported: ['click']"


def test_exported_names_exist() -> None:
    for name in ebcli.__all__:
        assert getattr(ebcli, name) is not None
        assert name in dir(ebcli)
    assert ebcli.__version__ == version("eb-saliency")
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        ebcli.nothing  # noqa: B018


@pytest.mark.parametrize("package", [ebcli, ebcli.evaluate, ebcli.models])
def test_exported_names_are_those_of_type_checkers(package: ModuleType) -> None:
    stub = ast.parse(Path(str(package.__file__)).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [
        statement for statement in stub.body if isinstance(statement, ast.ImportFrom) and statement.module
    ]
    declared = {alias.name: statement.module for statement in imports for alias in statement.names}
    declared.pop("captum", None)
    assert sorted(declared) == sorted({*package.__all__} - {"__version__"})
    for name, module in declared.items():
        assert getattr(package, name) is getattr(importlib.import_module(str(module)), name)


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """The code and the templates in a zip file. It has no stubs, and, as a frozen program, no metadata."""
    file = tmp_path / "program.zip"
    with zipfile.ZipFile(file, "w") as archive:
        for path in (ROOT / "ebcli").rglob("*"):
            if path.suffix in {".py", ".html", ".js", ".css"}:
                archive.write(path, path.relative_to(ROOT))
    return file


WITHOUT_METADATA = """
import importlib.metadata as metadata
known = metadata.Distribution.from_name

def from_name(name):
    if name == "eb-saliency":
        raise metadata.PackageNotFoundError(name)
    return known(name)

metadata.Distribution.from_name = from_name
"""
IN_ZIP = """
import ebcli, ebcli.evaluate, ebcli.models
from ebcli.errors import missing
from ebcli.cli.saliency import main
if __name__ == "__main__":
    print(ebcli.__file__, ebcli.models.Layer.__name__, ebcli.evaluate.resized.__name__)
    assert missing("captum") == "this needs the package captum: pip install captum"
    main("coffee.jpg --report --raw -o maps".split(), standalone_mode=False)
    main(["--version"])
"""


def test_commands_and_names_come_from_a_zip_file_without_metadata(program: Path, tmp_path: Path) -> None:
    shutil.copy(ROOT / "sample_images/coffee.jpg", tmp_path)
    (tmp_path / "start.py").write_text(WITHOUT_METADATA + IN_ZIP)
    environment = {**os.environ, "PYTHONPATH": str(program), "EB_SALIENCY_QUIET": "1"}
    command = [sys.executable, "-P", "start.py"]
    options = {"env": environment, "cwd": tmp_path, "capture_output": True, "text": True, "timeout": 300}
    done = subprocess.run(command, check=False, **options)
    assert done.returncode == 0, done.stderr
    names, picture, *_, version = done.stdout.splitlines()
    assert names == f"{program / 'ebcli/__init__.py'} Layer resized"
    assert (tmp_path / picture).is_file(), done.stderr
    assert version == "eb-saliency unknown"
    assert "espresso" in (tmp_path / "maps/report/index.html").read_text(encoding="utf-8")


def test_exported_names_are_not_shadowed_by_modules() -> None:
    """Importing a module sets it as an attribute of its package."""
    for module in pkgutil.walk_packages(ebcli.__path__, "ebcli."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    for package in (ebcli, ebcli.eb, ebcli.evaluate, ebcli.models):
        assert not [name for name in package.__all__ if inspect.ismodule(getattr(package, name))]


def test_all_that_is_missing_of_an_extra_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment without the three packages of an extra; what metadata of distributions say is made up."""
    requirements = [
        *(
            "torch>=2",
            "two>=2; extra == 'all'",
            "one-more>=1; extra == 'all'",
            "one_more>=1; extra == 'more'",
        ),
        *(
            'two>=2; extra == "more"',
            "there; python_version < '4' and extra == 'more'",
            "other; extra == 'else'",
        ),
    ]

    monkeypatch.setattr("importlib.metadata.requires", lambda _: requirements)
    monkeypatch.setattr("importlib.metadata.distributions", lambda: [SimpleNamespace(name="there")])
    said = r"^this needs the packages {}, {}: pip install 'eb-saliency\[more\]'$"
    with pytest.raises(ConfigurationError, match=said.format("one-more", "two")):
        import_optional("one_more.part")
    with pytest.raises(ConfigurationError, match=said.format("one-more", "two")):
        import_optional("second", "two")
    with pytest.raises(
        ConfigurationError, match=r"^this needs the package third_one: pip install third_one$"
    ):
        import_optional("third_one")


def test_optional_packages_are_those_of_the_extras() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "optional-dependencies"
    ]
    required = {re.split(r"[^\w-]", one)[0].replace("_", "-") for extra in extras.values() for one in extra}
    source = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "ebcli").rglob("*.py"))
    named = re.findall(r'(?:import_optional|missing)\("([\w.-]+)"(?:, "([\w-]+)")?\)', source)
    optional = {(package or module.partition(".")[0]).replace("_", "-") for module, package in named}
    assert len(optional) > 10
    documented = {"open-clip-torch", "lightning", "supervision", "wandb"}  # by their names
    assert optional - required == documented
