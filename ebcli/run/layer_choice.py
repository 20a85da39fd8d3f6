"""Which layers are explained."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ebcli.errors import ConfigurationError
from ebcli.files.naming import slug
from ebcli.models import LoadedModel, default_layer, layer_per_resolution, resolve_layer
from ebcli.models.keywords import ALL, INPUT


def chosen_layers(names: Sequence[str], loaded: LoadedModel) -> tuple[str, ...]:
    """The layers that are asked for, each once; the model's default layer if none are."""
    found: list[str] = []
    for name in names or (default_layer(loaded),):
        if name == ALL:
            found += [*layer_per_resolution(loaded), INPUT]
        else:
            found.append(name if name == INPUT else resolve_layer(loaded, name))
    return tuple(dict.fromkeys(found))


def check_distinct(layers: Sequence[str]) -> None:
    """Raise ConfigurationError if the names of two layers are the same in file names."""
    counts = Counter(map(slug, layers))
    alike = [repr(name) for name in layers if counts[slug(name)] > 1]
    if alike:
        raise ConfigurationError(f"the layers {' and '.join(alike)} share a file name: run them one at a time")
