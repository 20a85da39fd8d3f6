"""Where networks come from: each source is a class in a file of this folder, or in another package.

A network's name begins with its source's prefix, ``timm/resnet18``; torchvision's have none, and a factory has a colon.
Naming sources imports no torch.
"""

from __future__ import annotations

import re
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING

from ebcli.errors import ConfigurationError, closest
from ebcli.imports import MODELS, load_plugin, plugins

if TYPE_CHECKING:
    from ebcli.models.sources.base import ModelSource

_TORCHVISION, _FACTORY = (
    EntryPoint("torchvision", "ebcli.models.sources.torchvision:Torchvision", MODELS),
    EntryPoint("factory", "ebcli.models.sources.factory:Factory", MODELS),
)
_BUILT_IN = {
    "timm": EntryPoint("timm", "ebcli.models.sources.timm:Timm", MODELS),
    "hf": EntryPoint("hf", "ebcli.models.sources.huggingface:HuggingFace", MODELS),
}
_FILE = re.compile(r".*\.py:\w+")
_MODULE = re.compile(r"[\w.]+:\w+")


def source_of(name: str) -> tuple[str, ModelSource]:
    """A network by its name, to be built; and its name as its source spells it.

    Raises:
        ConfigurationError: there is no such network, or its source cannot be imported.
    """
    prefix, slash, rest = name.partition("/")
    known = {**{point.name: point for point in plugins(MODELS)}, **_BUILT_IN}
    if _FILE.fullmatch(name) or _MODULE.fullmatch(name):
        point, rest = _FACTORY, name
    elif name.endswith(".py"):
        raise ConfigurationError(f"{name} is a file: name the function in it as well, as in {name}:FUNCTION")
    elif not slash:
        point, rest = _TORCHVISION, name
    elif prefix in known:
        point = known[prefix]
    else:
        hint = closest(prefix, known) or f"there are {', '.join(f'{one}/NAME' for one in sorted(known))}"
        raise ConfigurationError(f"there is no model {name!r}, for {prefix!r} is no source of models: {hint}")
    made_by = load_plugin(point)
    if made_by is None:
        raise ConfigurationError(f"the source of {name!r} cannot be imported: repair or uninstall that package")
    source: ModelSource = made_by(rest)
    return name.removesuffix(rest) + source.name, source


def plugin_names() -> list[str]:
    """The names of plug-ins' networks, as far as they tell them, sorted; what cannot be imported is left out."""
    found = []
    for point in plugins(MODELS):
        if point.name not in _BUILT_IN:
            found += [f"{point.name}/{name}" for name in load_plugin(point, lambda source: list(source.names())) or ()]
    return sorted(found)
