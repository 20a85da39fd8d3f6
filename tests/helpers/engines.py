"""Which engine the tests run: ``ebcli.eb``, or the package that EBCLI_ENGINE names in its place."""

import importlib
import os
import pkgutil
import sys

import ebcli

NEXT = os.environ.get("EBCLI_ENGINE")


def choose() -> None:
    """Let the package that EBCLI_ENGINE names stand in for ``ebcli.eb``."""
    if NEXT:
        before, package = importlib.import_module("ebcli.eb"), importlib.import_module(NEXT)
        names = [module.name for module in pkgutil.walk_packages(package.__path__, f"{NEXT}.")]
        for name in [NEXT, *names]:
            sys.modules[f"ebcli.eb{name.removeprefix(NEXT)}"] = importlib.import_module(name)
        package.__path__ += before.__path__  # with what both share
        ebcli.eb = package
