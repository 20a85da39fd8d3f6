"""Which layers are explained."""

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress

from ebcli.errors import ConfigurationError, LayerError
from ebcli.files.naming import slug
from ebcli.models import LoadedModel, default_layer, layer_per_resolution, resolve_layer
from ebcli.models.keywords import ALL, INPUT
from ebcli.run.network_description import NetworkDescription, chosen_classes
from ebcli.run.plan import RunPlan


def described(plan: RunPlan, loaded: LoadedModel, own: str | None) -> NetworkDescription:
    """What is asked of a network: its layers, or its task's own one, and classes; not yet the method, if it varies."""
    maps = plan.maps
    if own is not None:
        method = plan.words.method if plan.words else ""
        return NetworkDescription(loaded=loaded, layers=(own,), default_layer=own, method=method)
    layers = chosen_layers(maps.layers, loaded)
    usual = None if maps.layers else layers[0]
    if len(layers) == 1 and maps.layers:
        with suppress(LayerError):  # this layer may do nevertheless
            usual = default_layer(loaded)
    counts = Counter(map(slug, layers))
    alike = [repr(name) for name in layers if counts[slug(name)] > 1]
    if alike and not plan.output.panel:
        raise ConfigurationError(f"the layers {' and '.join(alike)} share a file name: run them one at a time")
    classes, against = chosen_classes(maps, loaded)
    return NetworkDescription(loaded=loaded, layers=layers, default_layer=usual, classes=classes, against=against)


def chosen_layers(names: Sequence[str], loaded: LoadedModel) -> tuple[str, ...]:
    """The layers that are asked for, each once; the model's default layer if none are."""
    found: list[str] = []
    for name in names or (default_layer(loaded),):
        if name == ALL:
            found += [*layer_per_resolution(loaded), INPUT]
        else:
            found.append(name if name == INPUT else resolve_layer(loaded, name))
    return tuple(dict.fromkeys(found))
