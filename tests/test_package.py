"""What is imported when, and what the package exports."""

from __future__ import annotations

from importlib.metadata import version

import pytest
from stub_run import heavy_imports, run_python

import ebcli


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["--list-models"], [], ["--top-k", "x"]])
def test_what_needs_no_network_does_not_import_torch(arguments: list[str]) -> None:
    assert heavy_imports("ebcli.cli.saliency", arguments) == "imported: []"


def test_help_imports_nothing_beyond_click_and_itself() -> None:
    """Keeps ``--help`` fast: 0.2 s leave no room for a scientific package."""
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


def test_everything_exported_is_there() -> None:
    for name in ebcli.__all__:
        assert getattr(ebcli, name) is not None
        assert name in dir(ebcli)
    assert ebcli.__version__ == version("eb-saliency")
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        ebcli.nothing  # noqa: B018
