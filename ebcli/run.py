"""The one file that knows the order of the steps: load, find, leave out what is done, then work on the rest."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import astuple, dataclass, field, replace
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from threading import Event

import numpy as np

from ebcli import __version__
from ebcli.folder import OutputFolder, refuse_foreign_files
from ebcli.images import Geometry, has_image_suffix, is_recognised
from ebcli.inputs import Source, find
from ebcli.look import Look, palette
from ebcli.models import layers as model_layers
from ebcli.models import load_model
from ebcli.models.loading import UNTRAINED
from ebcli.network import Network
from ebcli.output import is_own, mirrored, origin, panel_place, picture_place, raw_place
from ebcli.pipeline import Pipeline
from ebcli.plan import RunPlan
from ebcli.records import History, Record, configuration_hash, content_hash
from ebcli.report import PAGE, refuse_foreign_page, write_report
from ebcli.scale import run_vmax
from ebcli.tasks import Drawing
from ebcli.workers import Workers


@dataclass(frozen=True)
class Run:
    """A run that is ready to go.

    Attributes:
        model, weights, layer, device: what is used; several layers with commas between them.
        total: how many files are to be worked on, at most: some may turn out to be no images.
        already: the inputs that are left out because they are done.
        results: works on the files as it is read, and tells what became of each, in order.
        stopping: set it, from a signal handler for example, and ``results`` ends after what has begun.
        vmax: where the scale of all maps ends, 1 being an even spread; None if each map has its own.
        page: the page of all results, which is there when ``results`` has come to its end; None for none.
    """

    model: str
    weights: str
    layer: str
    device: str
    total: int
    already: tuple[Path, ...]
    results: Iterator[Record]
    stopping: Event = field(default_factory=Event)
    vmax: float | None = None
    page: Path | None = None


def run(plan: RunPlan) -> Run:
    """Check and load everything that all images share; the images are worked on as ``results`` is read.

    Raises:
        ConfigurationError: model, weights, layer, class, colormap or device do not exist or do not fit, or a
            file that this program did not write is in the way of a result.
        UnsupportedOpError: the network has operations that no rule explains.
        OutputError: (also from ``results``) the output directory cannot be written to.
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
        done = [history.is_finished(plan.output, source.path, common.configuration) for source in sources]
        already = [source.path for source, is_done in zip(sources, done, strict=True) if is_done]
        rest = [source for source, is_done in zip(sources, done, strict=True) if not is_done]
    if not plan.overwrite:
        places = [mirrored(source.path) for source in rest]
        refuse_foreign_files(plan.output, places, lambda path: _is_result(path, plan, network), history)
    stopping = Event()
    if plan.dry_run:
        results = _planned(rest, common)
    else:
        results = _results(plan, network, look, geometry, history, rest, common, stopping)
    return Run(
        common.model,
        common.weights,
        common.layer,
        network.device,
        len(rest),
        tuple(already),
        results,
        stopping,
        look.vmax,
        plan.output / PAGE if plan.report and not plan.dry_run else None,
    )


def report_only(plan: RunPlan) -> Path:
    """Write the page of what earlier runs left in the output directory, and compute nothing.

    Raises:
        ConfigurationError: there are no records, or the page would replace a file that this program did not write.
        OutputError: the output directory cannot be written to.
    """
    workers = plan.workers if plan.workers is not None else _processors()
    return write_report(plan.output, Look.of(plan), workers, plan.overwrite)


def layer_table(model: str, weights: str) -> list[tuple[str, str, str, str]]:
    """The layers of a model as rows of text, below a row of headings: name, type, output shape and stride.

    Raises:
        ConfigurationError: the model or the weights do not exist or do not fit together.
    """
    # the layers are the same whatever is in them, so nothing is downloaded for this
    loaded = load_model(model, UNTRAINED if weights == RunPlan.weights else weights, "cpu")
    rows = [("NAME", "TYPE", "OUTPUT", "STRIDE")]
    for layer in model_layers(loaded):
        stride = "-" if layer.stride is None else f"{layer.stride:.3g}"
        rows.append((layer.name, layer.type, "x".join(map(str, layer.shape)), stride))
    return rows


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
    is_checkpoint = loaded.weights == plan.weights and Path(plan.weights).is_file()
    settings = {
        "version": __version__.split(".")[:2],  # what is released as a patch computes the same
        "model": loaded.name,
        "weights": content_hash(Path(plan.weights)) if is_checkpoint else loaded.weights,
        "preprocessing": repr(loaded.transforms),  # of a checkpoint, these two depend on its file's name as well
        "categories": loaded.categories,
        "layers": network.layers,
        "method": method,
        "unsupported": plan.allow_unsupported,
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


def _planned(sources: Sequence[Source], common: Record) -> Iterator[Record]:
    for source in sources:
        path = source.path
        is_image = source.named or has_image_suffix(path) or is_recognised(path)
        record = replace(common, input=str(path), place=str(mirrored(path)))
        yield record if is_image else replace(record, status="not an image")


def _results(
    plan: RunPlan,
    network: Network,
    look: Look,
    geometry: Geometry,
    history: History,
    sources: Sequence[Source],
    common: Record,
    stopping: Event,
) -> Iterator[Record]:
    if not sources and not history.written:  # else a killed run may have left something to clear away
        return
    facts = {
        "model": np.array(common.model),
        "weights": np.array(common.weights),
        "layer": np.array(network.layers if len(network.layers) > 1 else common.layer),
        "method": np.array(common.method),
        "versions": np.array([f"{name} {version(name)}" for name in ("ebcli", "torch", "torchvision")]),
    }
    about = f"{common.model} ({common.weights}), layer {common.layer}, {common.method}"
    with (
        closing(OutputFolder(plan.output, history, plan.overwrite)) as folder,
        Workers(_worker_count(plan, len(sources))) as workers,
    ):
        pipeline = Pipeline(
            network=network,
            folder=folder,
            workers=workers,
            geometry=geometry,
            drawing=Drawing(look, plan.format, plan.panel, about, facts if plan.raw else None),
            shown=plan.output,
            common=common,
            report=plan.report,
            fail_fast=plan.fail_fast,
            stopping=stopping,
        )
        yield from pipeline.run(sources)
    if plan.report:
        write_report(plan.output, look, workers=_worker_count(plan, len(sources)), overwrite=plan.overwrite)


def _worker_count(plan: RunPlan, images: int) -> int:
    if plan.workers is not None:
        return plan.workers
    # to start one takes as long as to draw a few photos, and a single image needs none
    return min(_processors(), images // 2)


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
