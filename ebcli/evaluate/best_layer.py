"""The layer that is best for each method, found on photos that the table leaves out."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from torch import nn

from ebcli.errors import ConfigurationError, LayerError
from ebcli.models import LoadedModel, default_layer
from ebcli.models import layers as model_layers

BEST = "best"
PHOTO = "image"  # the column of rows that names the photo
CHOSEN_ON = "chosen on"  # the column of the table with the number of photos that chose the layer
_CONTAINERS = nn.Sequential, nn.ModuleList

Row = dict[str, Any]


def candidate_layers(loaded: LoadedModel) -> list[str]:
    """The layers among which the best one is sought: the outermost blocks, such as ``features.0`` to ``features.17``.

    A block is a module with a map that lies directly in the network, or in one of its outermost containers
    (``nn.Sequential`` and ``nn.ModuleList``). The default layer is always among them.

    Raises:
        LayerError: no layer has a map.
    """
    names = [layer.name for layer in model_layers(loaded) if layer.stride is not None]
    default = default_layer(loaded)
    return [name for name in names if name == default or _is_block(loaded.net, name)]


def _is_block(net: nn.Module, name: str) -> bool:
    if type(net.get_submodule(name)) in _CONTAINERS:
        return False  # its last block has the same map
    parent, _, _ = name.rpartition(".")
    return parent == _outermost_container(net, name)


def _outermost_container(net: nn.Module, name: str) -> str:
    """The name of the outermost container around a module; empty for the network itself."""
    parts = name.split(".")
    for depth in range(len(parts)):
        parent = ".".join(parts[:depth])
        if isinstance(net.get_submodule(parent), _CONTAINERS):
            return parent
    return ""


def half_of(photos: Iterable[str]) -> frozenset[str]:
    """Half of the photos, by a hash of their names, so that it is the same half each time.

    Raises:
        ConfigurationError: there is only one photo.
    """
    ordered = sorted(photos, key=lambda name: sha256(name.encode("utf-8", "surrogateescape")).digest())
    if len(ordered) < 2:
        raise ConfigurationError(
            "--layer best needs two photos or more: one chooses the layer, one is measured"
        )
    return frozenset(ordered[: len(ordered) // 2])


@dataclass(frozen=True)
class LayerChoice:
    """How the best layer of each method is chosen.

    Attributes:
        column: the column of rows whose mean is largest at the best layer.
        photos: the photos that choose the layer. Rows about other photos are what is measured.
    """

    column: str
    photos: Collection[str]

    def select(self, rows: Iterable[Row]) -> list[Row]:
        """The rows about other photos, each method at its best layer, with the number of photos that chose it.

        Raises:
            LayerError: all photos that choose layers, or all others, are missing.
        """
        choosing: dict[str, dict[str, list[Row]]] = {}
        measured: list[Row] = []
        for row in rows:
            if row[PHOTO] in self.photos:
                choosing.setdefault(row["method"], {}).setdefault(row["layer"], []).append(row)
            else:
                measured.append(row)
        best = {method: self._best(by_layer) for method, by_layer in choosing.items()}
        counts = {method: _num_photos(by_layer) for method, by_layer in choosing.items()}
        selected = [
            row | {CHOSEN_ON: counts[row["method"]]}
            for row in measured
            if row["layer"] == best.get(row["method"])
        ]
        if not selected:
            raise LayerError("no layer could be chosen: photos that choose it, or all others, gave no result")
        return selected

    def _best(self, by_layer: dict[str, list[Row]]) -> str:
        def quality(layer: str) -> float:
            values = [row[self.column] for row in by_layer[layer]]
            return sum(values) / len(values)

        return max(by_layer, key=quality)


def _num_photos(by_layer: dict[str, list[Row]]) -> int | None:
    """How many photos chose among layers; None if there was nothing to choose."""
    if len(by_layer) == 1:
        return None
    return max(len({row[PHOTO] for row in rows}) for rows in by_layer.values())
