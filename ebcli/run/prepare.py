"""Everything before the first image: check the plan, load the network, find the files, skip what is up to date."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ebcli.drawing.color_scale import palette, visible
from ebcli.drawing.explanation import Explanation
from ebcli.drawing.regions import RegionOptions
from ebcli.drawing.style import DrawingStyle
from ebcli.errors import ConfigurationError, EbcliError
from ebcli.files.clips import ClipOptions
from ebcli.files.directory import check_writable, finish_killed_runs, refuse_foreign_files
from ebcli.files.history import History
from ebcli.files.images import Geometry, has_image_suffix, limit_pixels
from ebcli.files.naming import AUTO, COCO, SETTINGS, ResultNames, distinct_slug, output_relpath
from ebcli.files.records import Record
from ebcli.files.remote import url_of
from ebcli.files.sources import Source, find
from ebcli.files.video import ClipGeometry, has_video_suffix
from ebcli.files.video_writing import video_format
from ebcli.imports import DISTRIBUTION, installed_version
from ebcli.models.fingerprint import configuration_hash, content_hash, network_settings
from ebcli.models.keywords import DETECTION, SEGMENTATION, VIDEO
from ebcli.models.measured import caveat
from ebcli.run.facts import NetworkFacts, class_labels
from ebcli.run.labels import FOLDERS, with_labels
from ebcli.run.plan import InputOptions, MapOptions, RunPlan
from ebcli.run.rendering import RenderOptions
from ebcli.run.stages import ImageStages, NetworkInput, is_image, load_image

if TYPE_CHECKING:
    from ebcli.run.explainer import Explainer

Load = Callable[[Source], "NetworkInput | None"]

SAMPLE = 64  # images; about one image in 65 then exceeds the largest value of the sample


@dataclass(frozen=True)
class Prepared:
    """A run that is ready to start.

    Attributes:
        explainer: the network; None if nothing is to be done with it.
        stages: what is done for each image.
        skipped: the inputs whose results are up to date.
        sources: the files to work on.
    """

    explainer: Explainer | None
    stages: ImageStages
    skipped: list[Path]
    sources: list[Source]


def prepare(plan: RunPlan) -> Prepared:
    """Check the plan, load what all images share, and find the files.

    Raises:
        ConfigurationError: the model, weights, layer, class, colormap or device does not exist or does not fit, or a
            result would replace a file that this program did not write.
        UnsupportedOpError: the network has operations without an excitation rule.
        OutputError: the output directory cannot be written to.
    """
    style, output, inputs = plan.style, plan.output, plan.inputs
    limit_pixels(inputs.max_pixels)
    facts, explainer = NetworkFacts.of_bundled(plan), None
    if not plan.execution.dry_run:
        check_writable(output.directory)
        finish_killed_runs(output.directory)
    history = History.read(output.directory)
    listing = partial(
        find, inputs.images, output.directory, inputs.include, inputs.exclude, inputs.remote, stdin=inputs.stdin
    )

    sources = listing(shard=inputs.shard)
    # importing torch takes seconds, so a network is loaded only if something is to be done with it
    is_work = any(map(_may_be_work, sources))
    if is_work:
        palette(style.colormap)  # may import matplotlib
    if is_work and (facts is None or output.scale == "run"):
        explainer = _loaded(plan, len(sources))
        facts = explainer.facts
    facts = facts or NetworkFacts.of_plan(plan)
    clips = _clip_geometry(plan, facts)
    if clips is not None:
        listing = partial(listing, with_frames=True)
        sources = listing(shard=inputs.shard)
    sources = _labeled(sources, inputs, facts)
    geometry = Geometry.of(facts.transforms)
    if output.scale == "run" and explainer is not None:
        everything = sources if inputs.shard is None else _labeled(listing(), inputs, facts)
        style = replace(style, vmax=run_vmax(explainer, everything, _loader(geometry, clips), style))
    if not facts.trained:
        warnings.warn(f"{facts.name} is untrained: its maps are meaningless", stacklevel=2)
    elif doubts := caveat(facts.name):
        warnings.warn(doubts, stacklevel=2)
    common = _common(plan, facts, style)
    total, skipped = len(sources), []
    if output.skip_existing:
        done = [history.is_finished(output.directory, source, common.configuration) for source in sources]
        skipped = [source.path for source, is_done in zip(sources, done, strict=True) if is_done]
        sources = [source for source, is_done in zip(sources, done, strict=True) if not is_done]
    options = _render_options(plan, facts, style, common)
    if not output.overwrite:
        relpaths = [output_relpath(source.path) for source in sources]
        possible = range(facts.num_classes) if facts.classes is None else facts.classes
        others = [SETTINGS] * (output.settings is not None) + [COCO] * (options.regions is not None)
        class_names = {index: facts.category(index) for index in possible}
        refuse_foreign_files(output.directory, relpaths, lambda path: options.names.matches(path, class_names), others)
    if explainer is None and not plan.execution.dry_run and any(map(_may_be_work, sources)):
        explainer = _loaded(plan, total)
    stages = ImageStages(geometry, options, output.directory, common, output.report, inputs.max_pixels)
    if clips is not None:
        from ebcli.run.clip_stages import ClipStages

        stages = ClipStages.like(stages, clips)
    return Prepared(explainer, stages, skipped, sources)


def _clip_geometry(plan: RunPlan, facts: NetworkFacts) -> ClipGeometry | None:
    """How videos are cut into clips; None for images."""
    options = plan.inputs.clips
    if facts.task == VIDEO:
        return ClipGeometry.of(facts.transforms, options)
    if options != ClipOptions():
        raise ConfigurationError(f"--every, --start and --duration are for videos, but {facts.name} explains images")
    return None


def _loader(geometry: Geometry, clips: ClipGeometry | None) -> Load:
    if clips is None:
        return partial(load_image, geometry=geometry)
    from ebcli.run.clip_stages import load_clips

    return partial(load_clips, geometry=clips)


def _labeled(sources: list[Source], inputs: InputOptions, facts: NetworkFacts) -> list[Source]:
    if inputs.labels is None or not facts.num_classes:  # there is no network if there is nothing for it to do
        return sources
    is_all = inputs.shard is None
    accepts = is_image
    if facts.task == VIDEO:
        from ebcli.run.clip_stages import is_clip as accepts
    return with_labels(sources, inputs.labels, facts.categories, facts.num_classes, accepts, is_all)


def _may_be_work(source: Source) -> bool:
    """Whether a file may be an image or a video that can be read; False if it certainly is not."""
    if source.problem is not None:
        return False
    remote = source.span is not None or url_of(source.path) is not None
    return (remote or os.path.lexists(source.path)) and (is_image(source) or has_video_suffix(source.path))


def _loaded(plan: RunPlan, total: int) -> Explainer:
    from ebcli.run.explainer import Explainer

    explainer = Explainer(plan)
    # a batch is never larger than the run, whether or not some of its images are skipped
    explainer.batch_size = max(1, min(explainer.batch_size, total))
    return explainer


def run_vmax(explainer: Explainer, sources: Sequence[Source], load: Load, style: DrawingStyle) -> float:
    """The end of a run's shared color scale, in units of a uniform map: the largest value in a sample of its maps.

    The sample is spread evenly over the files of all shards, so every shard and every restart finds the same scale.
    It is rounded up to two significant digits, as other batch sizes and devices round differently. Unreadable images
    do not count; without any images, the scale ends at 1.

    Args:
        explainer: the network.
        sources: all files of the run.
        load: reads an image or a video.
        style: whether maps are drawn signed.
    """
    images = [
        source
        for source in sources
        if source.named or has_image_suffix(source.path) or has_video_suffix(source.path) or source.path.is_dir()
    ]
    chosen = np.linspace(0, len(images) - 1, min(SAMPLE, len(images))).round().astype(int)
    largest = 0.0
    for start in range(0, len(chosen), explainer.batch_size):
        pixels, labels, sizes = [], [], []
        for i in chosen[start : start + explainer.batch_size]:
            with suppress(EbcliError):
                if (loaded := load(images[i])) is not None:
                    pixels.append(loaded.pixels)
                    labels.append(images[i].label)
                    sizes.append(loaded.size)
        for explanation in explainer.explain(pixels, labels, sizes) if pixels else ():
            for at in explanation.layers if isinstance(explanation, Explanation) else ():
                largest = max(largest, *(_largest(maps, style) for maps in (at.maps, *at.beside.values())))
    return _rounded_up(largest) if largest else 1.0


def _largest(maps: NDArray[np.float32], style: DrawingStyle) -> float:
    """The largest finite value of maps (K, h, w), in units of a uniform map."""
    values = visible(np.nan_to_num(maps, nan=0, posinf=0, neginf=0), style)
    return float(values.max(initial=0)) * int(np.prod(maps.shape[1:]))


def _rounded_up(value: float) -> float:
    """To two significant digits: 0.3333 -> 0.34."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return float(f"{math.ceil(value / unit) * unit:.2g}")


def _common(plan: RunPlan, facts: NetworkFacts, style: DrawingStyle) -> Record:
    """The fields of a record that all images share."""
    maps, output = plan.maps, plan.output
    drawn = [style.name, style.colormap, style.alpha, style.signed, style.vmin, style.vmax, style.percentile]
    settings = {
        **network_settings(facts),
        "layers": facts.layers,
        "method": facts.method,
        "against": facts.against or (),
        "unsupported": maps.allow_unsupported,
        "dtype": plan.execution.dtype,
        "classes": _chosen_classes(plan, facts),
        "look": [*drawn, output.format, output.panel, list(maps.beside), output.max_side],
        "raw": output.raw,
    }
    if facts.task == VIDEO:
        settings["clips"] = asdict(plan.inputs.clips)
    if (regions := _region_options(plan)) is not None:
        settings["regions"] = asdict(regions)
    return Record(
        input="",
        status="planned",
        configuration=configuration_hash(settings),
        model=facts.name,
        weights=facts.weights,
        layer=", ".join(facts.layers),
        method=facts.method,
        against=tuple(facts.against or ()),
    )


def _region_options(plan: RunPlan) -> RegionOptions | None:
    output = plan.output
    return RegionOptions(*output.threshold, output.masks) if output.boxes or output.masks else None


def _chosen_classes(plan: RunPlan, facts: NetworkFacts) -> object:
    """What the choice of the classes depends on, for the configuration."""
    labels, maps = plan.inputs.labels, plan.maps
    if labels is not None:
        return ["labels", content_hash(labels) if labels != FOLDERS else None]
    if facts.task in (DETECTION, SEGMENTATION):
        return [facts.classes, maps.top_k, *_chosen_subjects(maps, facts.task)]
    if maps.above is not None:
        return ["above", maps.above]
    return maps.most if facts.classes is None else facts.classes


def _chosen_subjects(maps: MapOptions, task: str) -> list[object]:
    if task == DETECTION:
        return ["score", maps.score] if maps.box is None else ["box", maps.box]
    if isinstance(maps.where, Path):
        return ["mask", content_hash(maps.where)]
    return ["above", maps.above] if maps.where is None else ["pixel", maps.where]


def _render_options(plan: RunPlan, facts: NetworkFacts, style: DrawingStyle, common: Record) -> RenderOptions:
    weights = common.weights if facts.trained else "untrained"
    drawn = "; beside: ".join([common.method, *([", ".join(plan.maps.beside)] if plan.maps.beside else [])])
    about = f"{common.model} ({weights}), layer {common.layer}, {drawn}"
    output = plan.output
    method = "" if plan.maps.contrastive else "marginal"
    described = bool(plan.model.described)
    if facts.against:
        others = class_labels(facts.categories, facts.against) if described else map(str, facts.against)
        method = f"against {' '.join(map(distinct_slug, others) if described else others)}"
    needs_transparency = plan.style.name == "mask" and not output.panel
    format_ = "png" if output.format == AUTO and needs_transparency else output.format
    video = video_format(output.format) if facts.task == VIDEO else ""
    marked = tuple(facts.layers), facts.default_layer, method, described, video
    names = ResultNames(format_, output.panel, output.raw, *marked)
    provenance = {
        "model": common.model,
        "weights": weights,
        "method": drawn,
        "style": style.name,
        "version": f"{DISTRIBUTION} {installed_version()}",
    }
    arrays = _facts_of_raw(facts, common) if output.raw else None
    return RenderOptions(style, names, about, provenance, arrays, _region_options(plan), output.max_side)


def _facts_of_raw(facts: NetworkFacts, common: Record) -> dict[str, NDArray[np.str_]]:
    """What raw files say about their making, as arrays."""
    from importlib.metadata import version

    return {
        "model": np.array(common.model),
        "weights": np.array(common.weights),
        "layer": np.array(facts.layers if len(facts.layers) > 1 else common.layer),
        "method": np.array(common.method),
        "versions": np.array([f"{name} {version(name)}" for name in (DISTRIBUTION, "torch", "torchvision")]),
    }
