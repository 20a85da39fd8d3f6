"""Imports on demand, and the exported names."""

from __future__ import annotations

import sys
from importlib.metadata import version

import pytest
from stub_run import heavy_imports, run_python

import ebcli


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
    expected = ["click"] if sys.version_info >= (3, 11) else ["click", "tomli"]
    assert third_party.splitlines()[-1] == f"imported: {expected}"


def test_exported_names_exist() -> None:
    for name in ebcli.__all__:
        assert getattr(ebcli, name) is not None
        assert name in dir(ebcli)
    assert ebcli.__version__ == version("eb-saliency")
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        ebcli.nothing  # noqa: B018


def test_exported_names_are_not_shadowed_by_modules() -> None:
    """Importing a module sets it as an attribute of its package."""
    printed = run_python(
        "import importlib, inspect, pkgutil, ebcli.evaluate, ebcli.models\n"
        "for module in pkgutil.walk_packages(ebcli.__path__, 'ebcli.'):\n"
        "    '__main__' in module.name or importlib.import_module(module.name)\n"
        "for package in (ebcli, ebcli.eb, ebcli.evaluate, ebcli.models):\n"
        "    print([name for name in package.__all__ if inspect.ismodule(getattr(package, name))])\n"
    )
    assert printed == "[]\n" * 4
