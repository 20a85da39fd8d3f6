"""The examples in docstrings run, each in an empty namespace."""

import doctest
import importlib
import inspect
import pkgutil
from pathlib import Path

import pytest

import ebcli

MODULES = [
    module.name for module in pkgutil.walk_packages(ebcli.__path__, "ebcli.") if "__main__" not in module.name
]
ERRORS = [name for name in ebcli.__all__ if name.endswith("Error")]
PUBLIC = sorted({*ebcli.__all__} - {*ERRORS, "__version__"})
ROOT = Path(__file__).parents[1]


def examples(docstring: str, name: str) -> doctest.DocTest:
    return doctest.DocTestParser().get_doctest(docstring, {}, name, None, None)


@pytest.mark.parametrize("name", PUBLIC)
def test_public_names_have_an_example_that_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    test = examples(inspect.getdoc(getattr(ebcli, name)) or "", name)
    assert test.examples
    failed, _ = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(test)
    assert not failed


def test_examples_are_only_in_public_docstrings() -> None:
    """Examples elsewhere would not be run."""
    public = {id(getattr(ebcli, name)) for name in PUBLIC}
    for module in map(importlib.import_module, MODULES):
        for test in doctest.DocTestFinder(exclude_empty=True).find(module):
            thing = module
            for part in test.name.removeprefix(module.__name__).strip(".").split("."):
                thing = getattr(thing, part) if part else thing
            assert not test.examples or id(thing) in public, test.name
