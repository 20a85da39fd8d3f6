"""What comes before any work on images: everything is checked and loaded, the files are found, those done left out."""

from __future__ import annotations

import os
from dataclasses import astuple, dataclass, replace
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path

import numpy as np

from ebcli.folder import refuse_foreign_files
from ebcli.images import Geometry
from ebcli.inputs import Source, find
from ebcli.look import Look, palette
from ebcli.network import Network
from ebcli.output import is_own, mirrored, origin, panel_place, picture_place, raw_place
from ebcli.plan import RunPlan
from ebcli.records import History, Record, configuration_hash, network_settings
from ebcli.report import refuse_foreign_page
from ebcli.scale import run_vmax
from ebcli.steps import Steps
from ebcli.tasks import Drawing


@dataclass(frozen=True)
class Prepared:
    """A run that nothing is in the way of.

    Attributes:
        network: the network.
        history: what earlier runs left in the output directory.
        steps: what is done for each image.
        already: the inputs that are left out because they are done.
        rest: the files to work on.
    """

    network: Network
    history: History
    steps: Steps
    already: list[Path]
    rest: list[Source]


def prepare(plan: RunPlan) -> Prepared:
    """Check and load everything that all images share, and find them.

    Raises:
        ConfigurationError: model, weights, layer, class, colormap or device do not exist or do not fit, or a
            file that this program did not write is in the way of a result.
        UnsupportedOpError: the network has operations that no rule explains.
        OutputError: the output directory cannot be written to.
    """
    look = Look.of(plan)
    palette(look.cmap)
    if plan.report:
        refuse_foreign_page(plan.output, plan.overwrite)
    network = Network(plan)
    history = History.read(plan.output)
    everything = _sources(plan, history)
    sources = everything if plan.shard is None else everything[plan.shard[0] - 1 :: plan.shard[1]]
    # a batch is never larger than the run, and that does not depend on how much of it is done
    network.batch_size = max(1, min(network.batch_size, len(sources)))
    geometry = Geometry.of(network.loaded.transforms)
    if plan.scale == "run":
        look = replace(look, vmax=run_vmax(network, everything, geometry, look))
    common = _common(plan, network, look)
    already, rest = [], sources
    if plan.skip_existing:
        done = [history.is_finished(plan.output, source, common.configuration) for source in sources]
        already = [source.path for source, is_done in zip(sources, done, strict=True) if is_done]
        rest = [source for source, is_done in zip(sources, done, strict=True) if not is_done]
    if not plan.overwrite:
        places = [mirrored(source.path) for source in rest]
        refuse_foreign_files(plan.output, places, lambda path: _is_result(path, plan, network), history)
    drawing = _drawing(plan, network, look, common)
    return Prepared(network, history, Steps(geometry, drawing, plan.output, common, plan.report), already, rest)


def _sources(plan: RunPlan, history: History) -> list[Source]:
    """The files of all shards; results of this and of other runs are no inputs, wherever they lie."""
    root, real = os.path.realpath(plan.output), lru_cache(os.path.realpath)

    def is_result(path: Path) -> bool:
        whole = Path(real(path.parent), path.name)
        recorded = whole.is_relative_to(root) and str(whole.relative_to(root)) in history.written
        return recorded or (origin(path) is not None and is_own(path))

    sources = find(plan.images, plan.output, plan.include, plan.exclude)
    return [source for source in sources if source.named or not is_result(source.path)]


def _common(plan: RunPlan, network: Network, look: Look) -> Record:
    """The part of the records that is the same for all images."""
    loaded = network.loaded
    method = "contrastive EB" if plan.contrastive else "marginal EB"
    settings = {
        **network_settings(loaded),
        "layers": network.layers,
        "method": method,
        "unsupported": plan.allow_unsupported,
        "dtype": plan.dtype,
        "classes": plan.top_k if network.classes is None else network.classes,
        "look": [*astuple(look), plan.format, plan.panel, plan.with_marginal],
        "raw": plan.raw,
    }
    return Record(
        input="",
        status="planned",
        configuration=configuration_hash(settings),
        model=loaded.name,
        weights=loaded.weights,
        layer=", ".join(network.layers),
        method=method,
    )


def _drawing(plan: RunPlan, network: Network, look: Look, common: Record) -> Drawing:
    facts = {
        "model": np.array(common.model),
        "weights": np.array(common.weights),
        "layer": np.array(network.layers if len(network.layers) > 1 else common.layer),
        "method": np.array(common.method),
        "versions": np.array([f"{name} {version(name)}" for name in ("ebcli", "torch", "torchvision")]),
    }
    about = f"{common.model} ({common.weights}), layer {common.layer}, {common.method}"
    return Drawing(look, plan.format, plan.panel, about, facts if plan.raw else None)


def _is_result(path: Path, plan: RunPlan, network: Network) -> bool:
    """Whether a run can come to write a file of this name; every class is possible unless some are given."""
    came = origin(path)
    if came is None:
        return False
    place, index = came
    if index is None:
        return (plan.raw and path == raw_place(place)) or (plan.panel and path == panel_place(place, plan.format))
    possible = range(network.num_classes) if network.classes is None else network.classes
    layers = network.layers if len(network.layers) > 1 else (None,)
    return (
        not plan.panel
        and index in possible
        and any(path == picture_place(place, index, network.category(index), plan.format, at) for at in layers)
    )
