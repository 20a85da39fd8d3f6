"""What comes before any work on images: everything is checked and loaded, the files are found, those done left out."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, replace
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ebcli.drawing.color_scale import DrawingStyle, palette
from ebcli.errors import EbcliError
from ebcli.files.directory import refuse_foreign_files
from ebcli.files.images import Geometry, has_image_suffix
from ebcli.files.naming import is_own, output_relpath, panel_place, parse_result_name, picture_place, raw_place
from ebcli.files.records import History, Record
from ebcli.files.sources import Source, find
from ebcli.gallery.page import refuse_foreign_page
from ebcli.imports import DISTRIBUTION
from ebcli.models.fingerprint import configuration_hash, network_settings
from ebcli.run.explainer import Explainer
from ebcli.run.plan import RunPlan
from ebcli.run.stages import ImageStages, RenderOptions, look

SAMPLE = 64  # images; of many, one in 65 then goes beyond the greatest value found


def run_vmax(network: Explainer, sources: Sequence[Source], geometry: Geometry, style: DrawingStyle) -> float:
    """Where a run's scale ends, 1 being an even spread: at the greatest value in a sample of its images' maps.

    The sample is spread evenly over the run's files, all shards of them. So it is the same for every shard, and again
    after a restart, and the scale with it: it is rounded up to two digits, for batches of another size or another
    device differ in rounding. Images that cannot be read do not count; without any, the scale ends at 1.

    Args:
        network: explains the images.
        sources: all files of the run.
        geometry: how the network sees them.
        style: whether maps are drawn signed.
    """
    images = [source for source in sources if source.named or has_image_suffix(source.path)]
    chosen = np.linspace(0, len(images) - 1, min(SAMPLE, len(images))).round().astype(int)
    greatest = 0.0
    for start in range(0, len(chosen), network.batch_size):
        pixels = []
        for i in chosen[start : start + network.batch_size]:
            with suppress(EbcliError):
                seen = look(images[i], geometry)
                pixels += [] if seen is None else [seen.pixels]
        for explained in network.explain(pixels) if pixels else ():
            for at in explained.layers:
                greatest = max(
                    greatest, *(_greatest(maps, style) for maps in (at.maps, at.marginal) if maps is not None)
                )
    return _rounded_up(greatest) if greatest else 1.0


def _greatest(maps: NDArray[np.float32], style: DrawingStyle) -> float:
    """In even spreads, of maps (K, h, w); what is not finite does not count."""
    shown = style.shown(np.nan_to_num(maps, nan=0, posinf=0, neginf=0))
    return float(shown.max()) * maps[0].size


def _rounded_up(value: float) -> float:
    """To two significant digits: 0.3333 -> 0.34."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return float(f"{math.ceil(value / unit) * unit:.2g}")


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

    network: Explainer
    history: History
    steps: ImageStages
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
    look = DrawingStyle.of(plan)
    palette(look.cmap)
    if plan.report:
        refuse_foreign_page(plan.output, plan.overwrite)
    network = Explainer(plan)
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
        places = [output_relpath(source.path) for source in rest]
        refuse_foreign_files(plan.output, places, lambda path: _is_result(path, plan, network), history)
    drawing = _drawing(plan, network, look, common)
    return Prepared(network, history, ImageStages(geometry, drawing, plan.output, common, plan.report), already, rest)


def _sources(plan: RunPlan, history: History) -> list[Source]:
    """The files of all shards; results of this and of other runs are no inputs, wherever they lie."""
    root, real = os.path.realpath(plan.output), lru_cache(os.path.realpath)

    def is_result(path: Path) -> bool:
        whole = Path(real(path.parent), path.name)
        recorded = whole.is_relative_to(root) and str(whole.relative_to(root)) in history.written
        return recorded or (parse_result_name(path) is not None and is_own(path))

    sources = find(plan.images, plan.output, plan.include, plan.exclude)
    return [source for source in sources if source.named or not is_result(source.path)]


def _common(plan: RunPlan, network: Explainer, look: DrawingStyle) -> Record:
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


def _drawing(plan: RunPlan, network: Explainer, look: DrawingStyle, common: Record) -> RenderOptions:
    facts = {
        "model": np.array(common.model),
        "weights": np.array(common.weights),
        "layer": np.array(network.layers if len(network.layers) > 1 else common.layer),
        "method": np.array(common.method),
        "versions": np.array([f"{name} {version(name)}" for name in (DISTRIBUTION, "torch", "torchvision")]),
    }
    about = f"{common.model} ({common.weights}), layer {common.layer}, {common.method}"
    return RenderOptions(look, plan.format, plan.panel, about, facts if plan.raw else None)


def _is_result(path: Path, plan: RunPlan, network: Explainer) -> bool:
    """Whether a run can come to write a file of this name; every class is possible unless some are given."""
    came = parse_result_name(path)
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
