"""Everything before the first image: check the plan, load the network, find the files, skip what is up to date."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ebcli.datatypes.explanation import Explanation
from ebcli.drawing.painters import palette, rounded_up, visible
from ebcli.drawing.regions import RegionOptions
from ebcli.drawing.style import ATLAS, DrawingStyle
from ebcli.errors import DISTRIBUTION, ConfigurationError, EbcliError, ImageError
from ebcli.files.clips import ClipOptions
from ebcli.files.images import limit_pixels
from ebcli.files.media.film import Film
from ebcli.files.media.medium import INPUT_FORMATS
from ebcli.files.naming import ANSWER, AUTO, SETTINGS, ResultNames, distinct_slug
from ebcli.files.records import Record
from ebcli.files.sink import Sink
from ebcli.files.sources import Source, find_sources
from ebcli.files.video_encoding import video_format
from ebcli.imports import installed_version
from ebcli.methods.table import CONTRASTIVE, Method
from ebcli.models import LoadedModel, resolve_class
from ebcli.models.classes import read_labels
from ebcli.models.keywords import ALL, CLASSIFICATION, VIDEO
from ebcli.models.loaded import configuration_hash, content_hash, network_settings
from ebcli.models.names import caveat
from ebcli.run.network_description import (
    NetworkDescription,
    check_picture,
    in_a_sentence,
    target_names,
    warn_of_several,
)
from ebcli.run.photo_tables import match_rows
from ebcli.run.pipeline import Run, configuration_of, workers_for
from ebcli.run.plan import RunPlan
from ebcli.run.plan_parts import (
    ANNOTATIONS,
    BOXES,
    MASKS,
    RUN,
    WINDOWS,
    ExecutionOptions,
    InputOptions,
    OutputOptions,
)
from ebcli.run.questions import with_queries
from ebcli.run.reading import NetworkInput, Reader, has_films, medium_of, sample_inputs
from ebcli.run.rendering import Arrays, RenderOptions, render
from ebcli.workers import warm

if TYPE_CHECKING:
    from ebcli.run.explainer import Explainer

Sources = Sequence[Source]

_OF_WORDS = "words phrases against all_words max_tokens".split()  # the same for all questions
# options of the output that change no picture, record or array
_OUTPUT_ONLY = "directory report scale skip_existing overwrite annotations threshold records".split()

# settings that earlier versions lacked, with what those did: results of these stay up to date
_LATER = {"header": True, "frames": None, "smooth": ClipOptions.smooth}

SAMPLE = 64  # images; about one image in 65 then exceeds the largest value of the sample
FOLDERS = Path("folders")  # in place of a file: an image's class is its directory's name


def prepare(plan: RunPlan, sink: Sink) -> Run:
    """Check the plan, load what all images share, and find the files.

    Args:
        plan: the run.
        sink: where its results go.

    Raises:
        ConfigurationError: the model, weights, layer, class, colormap or device does not exist or does not fit, or a
            result would replace a file that this program did not write.
        UnsupportedOpError: the network has operations without an excitation rule.
        OutputError: the output directory cannot be written to.
    """
    style = plan.style
    inputs = plan.inputs
    is_dry = plan.execution.dry_run
    limit_pixels(inputs.max_pixels)
    network = NetworkDescription.of_bundled(plan)
    explainer = None
    if not is_dry:
        sink.check()
    listing = partial(
        find_sources,
        inputs.images,
        sink.directory,
        inputs.include,
        inputs.exclude,
        inputs.remote,
        stdin=inputs.stdin,
    )
    sources: Sources = listing(shard=inputs.shard)
    # importing torch takes seconds, so a network is loaded only if something is to be done with it
    is_work = any(map(_may_be_work, sources))
    has_scale = plan.output.scale == RUN
    if is_work and style.cmap is not None:
        palette(style.cmap)  # may import matplotlib
    if is_work and (network is None or has_scale):
        explainer = _load_explainer(plan, sources)
        network = explainer.network
    network = network or NetworkDescription.of_plan(plan)
    model = network.loaded
    _check_model(plan, model)
    check_picture(network)
    has_windows = plan.maps.candidates == WINDOWS
    reader = Reader(
        model.transforms,
        inputs.clips,
        inputs.max_pixels,
        has_windows=has_windows,
        allow_truncated=inputs.allow_truncated,
    )
    if model.transforms.axes != "HW" or inputs.clips.frames is not None:
        listing = partial(listing, as_one=reader.formats)
        sources = listing(shard=inputs.shard)
    sources = with_labels(sources, inputs, model, reader)
    if plan.words is not None:
        sources = with_queries(sources, plan.words, inputs, reader.accepts)
    if has_scale and explainer is not None:
        all_sources = sources if inputs.shard is None else with_labels(listing(), inputs, model, reader)
        with workers_for(plan, 1) as workers:
            load = partial(workers.call, reader.open)
            style = replace(style, vmax=run_vmax(explainer, all_sources, load, style))
    _warn_of(network, target_names(plan.maps))
    common = Record(
        input="",
        status="planned",
        configuration=configuration_hash(_settings(plan, network, style)),
        against=tuple(network.against or ()),
        candidates=str(plan.maps.candidates or ""),
        **network.provenance,
    )
    remaining, skipped = _without_finished(sources, plan, sink, model, common)
    options = render_options(plan, network, style)
    extra_files = [SETTINGS, *ANNOTATIONS.get(plan.output.annotations or "", ())]
    class_names = {index: model.category(index) for index in network.possible}
    is_result = partial(options.names.matches, class_names=class_names)
    photos = {source.path: source for source in remaining}  # each once, whatever is asked about it
    sink.refuse([*photos.values()], reader.accepts, is_result, extra_files)
    if explainer is None and not is_dry and any(map(_may_be_work, remaining)):
        explainer = _load_explainer(plan, sources)
    return Run(
        plan=plan,
        sink=sink,
        explainer=explainer,
        reader=reader,
        options=options,
        common=common,
        sources=remaining,
        skipped=skipped,
        configurations={configuration_of(source, common) for source in sources},
        task=model.task,
        device=explainer.device if explainer else plan.execution.device,
    )


def _without_finished(
    sources: Sources, plan: RunPlan, sink: Sink, model: LoadedModel, common: Record
) -> tuple[list[Source], list[Path]]:
    """The files that remain to be done, and the paths of those whose results are up to date, if they are skipped."""
    remaining: list[Source] = []
    skipped: list[Path] = []
    for source in sources:
        other_inputs = partial(_other_inputs, source, model)
        configuration = configuration_of(source, common)
        if plan.output.skip_existing and sink.has_finished(source, configuration, other_inputs):
            skipped.append(source.path)
        else:
            remaining.append(source)
    return remaining, skipped


def _other_inputs(source: Source, model: LoadedModel) -> str:
    """A hash of what the network gets beside the image; empty for one input, or if it cannot be read."""
    if model.inputs is None:
        return ""
    with suppress(ImageError), model.inputs.given(None, source.name):
        return model.inputs.digest
    return ""


def _check_model(plan: RunPlan, model: LoadedModel) -> None:
    """Raise ConfigurationError if options are for networks for other data."""
    if model.transforms.depth is not None and plan.inputs.clips != ClipOptions():
        problem = f"but {model.name} explains volumes"
        raise ConfigurationError(f"--every, --start and --duration are for videos, {problem}")
    has_figures = plan.output.panel or model.transforms.axes != "HW"  # contact sheets of videos and volumes
    style = plan.style
    usual = DrawingStyle.cell_size, DrawingStyle.dpi, DrawingStyle.header
    if (style.cell_size, style.dpi, style.header) != usual and not has_figures:
        raise ConfigurationError(
            "--cell-size, --dpi and --no-header are for figures: add --panel, or drop them"
        )


def _may_be_work(source: Source) -> bool:
    """Whether a file may be an image or a video that can be read; False if it certainly is not."""
    if source.problem is not None:
        return False
    return (not source.is_local or os.path.lexists(source.path)) and medium_of(source) is not None


def _load_explainer(plan: RunPlan, sources: Sources) -> Explainer:
    if plan.execution.workers != 0 and not plan.execution.dry_run:
        warm(render.__module__)  # while PyTorch is imported
    from ebcli.run.explainer import Explainer

    return Explainer(plan, sys.maxsize if has_films(sources) else len(sources))


def run_vmax(
    explainer: Explainer,
    sources: Sources,
    load: Callable[[Source], NetworkInput | Film | None],
    style: DrawingStyle,
) -> float:
    """The end of a run's shared color scale, in units of a uniform map: the largest value in a sample of its maps.

    The sample is spread evenly over the files of all shards, so every shard and every restart finds the same scale.
    It is rounded up to two significant digits, as other batch sizes and devices round differently. Unreadable images
    do not count; without any images, the scale ends at 1.

    Args:
        explainer: the network.
        sources: all files of the run.
        load: reads an image or a video, or some frames of it.
        style: whether maps are drawn signed.
    """
    images = [*filter(_is_probably_image, sources)]
    count = len(images)
    sample: list[NetworkInput] = []
    explanations: list[Explanation | ImageError] = []
    for i in np.linspace(0, count - 1, min(SAMPLE, count)).round().astype(int):
        with suppress(EbcliError, MemoryError):
            item = load(images[i])
            if isinstance(item, Film):
                frames = sample_inputs(item)
                film_explainer, _ = explainer.for_film(frames)
                explanations += film_explainer.explain(frames)
            elif item is not None:
                sample.append(item)
    sample.sort(key=lambda image: (len(image.form), image.form))
    explanations += explainer.explain(sample)
    largest = 0.0
    for explanation in explanations:
        if isinstance(explanation, ImageError):
            continue
        for map_ in explanation.maps:
            for values in (map_.values, *map_.method_maps.values()):
                finite = visible(np.nan_to_num(values, nan=0, posinf=0, neginf=0), style)
                # in units of a uniform map
                largest = max(largest, float(finite.max(initial=0)) * values.size)
    return rounded_up(largest or 1.0)


def _is_probably_image(source: Source) -> bool:
    """Whether the user named a file, or its name says that it is of some kind of data, or it is a directory."""
    path = source.path
    if source.is_explicit or os.path.isdir(path):
        return True
    return any(medium.has_suffix(path) for medium in INPUT_FORMATS)


def _region_options(output: OutputOptions) -> RegionOptions | None:
    if output.annotations not in (BOXES, MASKS):
        return None
    return RegionOptions(*output.threshold, output.annotations == MASKS)


def _warn_of(network: NetworkDescription, targets: Sequence[str]) -> None:
    """Say what its maps may not be taken for."""
    model = network.loaded
    doubts = caveat(model.name)
    if not model.trained:
        doubts = f"{model.name} is untrained: its maps are meaningless"
    if doubts:
        warnings.warn(doubts, stacklevel=2)
    warn_of_several(network, targets)


def _settings(plan: RunPlan, network: NetworkDescription, style: DrawingStyle) -> dict[str, object]:
    """Everything that results depend on: all options but those that only say where and how fast they are made."""
    model = network.loaded
    maps = asdict(plan.maps)
    del maps["track_lost_mass"]  # which changes records only
    # by their own names
    maps |= {"layers": network.layers, "targets": network.classes, "against": network.against}
    if maps["top_k"] == 1 and model.task in (CLASSIFICATION, VIDEO):
        maps["top_k"] = None
    if isinstance(maps["candidates"], Path):  # whose classes are the targets
        maps["candidates"] = None
    if isinstance(maps["where"], Path):
        maps["where"] = content_hash(maps["where"])
    labels = plan.inputs.labels
    labels_hash = str(FOLDERS) if labels == FOLDERS else labels and content_hash(labels)
    regions = _region_options(plan.output)
    settings = {
        **network_settings(model),
        "method": network.method,
        "dtype": plan.execution.dtype,
        "labels": labels_hash,
        "clips": _without_later(asdict(plan.inputs.clips)),
        "maps": maps,
        "style": _without_later({**asdict(style), "cmap": style.colormap}),
        "output": {name: value for name, value in asdict(plan.output).items() if name not in _OUTPUT_ONLY},
        "regions": regions and asdict(regions),
    }
    methods = (*plan.maps.method_entries, *plan.maps.entries_beside)
    if files := [content_hash(Path(method.file)) for method in methods if method.file]:
        settings["method files"] = files
    if plan.words is not None:
        settings["words"] = {name: getattr(plan.words, name) for name in _OF_WORDS}
    return settings


def _without_later(settings: dict[str, object]) -> dict[str, object]:
    """Settings without those that do what earlier versions did, which had no such setting."""
    return {name: value for name, value in settings.items() if name not in _LATER or value != _LATER[name]}


def render_options(plan: RunPlan, network: NetworkDescription, style: DrawingStyle) -> RenderOptions:
    """How the results of a run are rendered."""
    output = plan.output
    provenance = network.provenance_of_picture(plan.maps.beside)
    format_ = output.format
    if format_ == AUTO and plan.style.name == "mask" and not output.panel:  # JPEG has no transparency
        format_ = "png"
    video = ""
    if network.loaded.task == VIDEO:
        video = video_format(output.format)
    precision = {}
    if plan.execution.dtype != ExecutionOptions.dtype:
        precision["dtype"] = plan.execution.dtype
    marks = {method.name: _method_mark(method, plan, network) for method in plan.maps.method_entries}
    names = ResultNames(
        format=format_,
        figure=_figure_kind(plan),
        raw=output.raw,
        layers=network.layers,
        default_layer=network.default_layer,
        method=" ".join(filter(None, marks.values())),
        method_marks=marks if len(marks) > 1 else {},
        described=bool(plan.model.descriptions),
        video=video,
        volumes=network.loaded.transforms.depth is not None,
    )
    return RenderOptions(
        style=style,
        names=names,
        subtitle=in_a_sentence(provenance),
        provenance=provenance | precision | {"style": style.name, "version": ", ".join(_versions()[:2])},
        raw_provenance=_raw_provenance(network) | precision if output.raw else None,
        regions=_region_options(output),
        max_side=output.max_side,
        at=plan.maps.at,
    )


def _figure_kind(plan: RunPlan) -> str:
    """What shows all maps of an image in one, as file names have it; empty for a picture of each map."""
    if plan.words is not None:
        return ANSWER
    if not plan.output.panel:
        return ""
    if plan.maps.layers == (ALL,):
        return "layers"
    if plan.style.name == ATLAS:
        return ATLAS
    return "panel"


def _method_mark(method: Method, plan: RunPlan, network: NetworkDescription) -> str:
    """A method as file names have it; empty for contrastive maps against duals."""
    words = [] if method.name == CONTRASTIVE else [method.name]
    if network.against and method.takes_against:
        names = map(str, network.against)
        if plan.model.descriptions:
            names = map(distinct_slug, network.labels_against)
        words += ["against", *names]
    return " ".join(words)


def _raw_provenance(network: NetworkDescription) -> Arrays:
    """What raw files say about their making."""
    fields = network.provenance
    if len(network.layers) > 1:
        fields["layer"] = network.layers
    fields["versions"] = _versions()
    return fields


def _versions() -> list[str]:
    return [f"{name} {installed_version(name)}" for name in (DISTRIBUTION, "torch", "torchvision")]


def with_labels(sources: Sources, inputs: InputOptions, model: LoadedModel, reader: Reader) -> Sources:
    """The same files, each with its true class as ``label``; with warnings if images have none, or labels no image.

    Args:
        sources: the files.
        inputs: their ``labels``, if there are any, are a CSV file of two columns, a file and its class by index or
            name; or ``FOLDERS``. A file is named by any number of the last parts of its path.
        model: the network, for its classes; without any, there is nothing for it to do.
        reader: says whether a file is worked on; others need no label.

    Raises:
        ConfigurationError: the file cannot be read, a class does not exist, or no image has a label.
    """
    labels = inputs.labels
    if labels is None or not model.num_classes:
        return sources
    if labels == FOLDERS:
        by_folder = _folders([*filter(reader.accepts, sources)], model)
        return [replace(source, label=by_folder.get(_folder(source.path))) for source in sources]
    table = read_labels(labels, model.categories, model.num_classes)
    rows = match_rows(sources, table, labels, "label", reader.accepts, is_all=inputs.shard is None)
    pairs = zip(sources, rows, strict=True)
    return [replace(source, label=row.label) if row else source for source, row in pairs]


def _folder(path: Path) -> str:
    """The name of the directory that holds a file."""
    name = path.parent.name
    return name if name not in ("", "..") else path.parent.resolve().name


def _folders(sources: Sources, model: LoadedModel) -> dict[str, int]:
    """The class of each directory by its name; without class names, in sorted order, as torchvision's ImageFolder."""
    names = sorted({_folder(source.path) for source in sources})
    if model.categories is None and len(names) == model.num_classes and not all(map(str.isdecimal, names)):
        return {name: index for index, name in enumerate(names)}
    by_name = {}
    for name in names:
        class_name = name.replace("_", " ")
        try:
            by_name[name] = resolve_class(model.categories, class_name, model.num_classes)
        except ConfigurationError as error:
            reason = str(error).replace(repr(class_name), repr(name))
            raise ConfigurationError(
                f"the directory '{name}' is not named after a class ({reason})"
            ) from error
    return by_name
