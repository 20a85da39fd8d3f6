"""Benchmarks: the model under test, with its methods and layers, and runs, which save each result as it is measured."""

import json
import os
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from itertools import chain, repeat
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from ebcli.errors import ConfigurationError, ImageError, LayerError, as_output_error
from ebcli.evaluate.best_layer import BEST, CHOSEN_ON, PHOTO, LayerChoice, candidate_layers, half_of
from ebcli.evaluate.data_sets import LabeledImages
from ebcli.evaluate.metrics import bootstrap_interval
from ebcli.files.records import append_lines, read_json_lines
from ebcli.methods.call import MethodCall, class_priors
from ebcli.methods.chance import CHANCE_METHODS
from ebcli.methods.table import PICTURE, check_methods, find_method
from ebcli.models import ModelSpec, default_layer, load_model, resolve_layer
from ebcli.models import layers as model_layers
from ebcli.models.keywords import CLASSIFICATION, CROP, INPUT
from ebcli.models.loaded import configuration_hash, content_hash, network_settings
from ebcli.models.running import probe, resolve_device

Row = dict[str, Any]  # of a table; values are text and numbers
NO_LAYER = "-"


class NamedMaps(NamedTuple):
    """The maps of a method at a layer: signed, (K, h, w)."""

    method: str
    layer: str
    maps: NDArray[np.float32]

    @property
    def labels(self) -> Row:
        """What rows say of them."""
        return {"method": self.method, "layer": self.layer}


@dataclass(frozen=True)
class Benchmark:
    """A benchmark, ready to run.

    Attributes:
        name: its name.
        settings: everything that results depend on.
        units: names of the units of work, in order; usually images.
        measure: measures a unit and yields rows; if it raises ``ImageError``, the unit is skipped.
        unit: what to call one unit.
        keys: what a row of the table is about, besides method and layer: columns of the rows of units.
        columns: the other columns of that row, from the rows of units that agree in these.
        choice: how each method's best layer is chosen; None if all layers are in the table.
    """

    name: str
    settings: Mapping[str, Any]
    units: Sequence[str]
    _: KW_ONLY
    measure: Callable[[str], Iterable[Row]]
    unit: str = "image"
    keys: Sequence[str] = ()
    columns: Callable[[list[Row]], Row] = lambda _: {}
    choice: LayerChoice | None = None

    def summarize(self, rows: Iterable[Row]) -> list[Row]:
        """The rows of the table, from those of all units."""
        keys = ["method", "layer", *self.keys]
        if self.choice is not None:
            keys.insert(2, CHOSEN_ON)
            rows = self.choice.select(rows)
        groups = group_rows(rows, *keys).values()
        return [{key: group[0][key] for key in keys} | self.columns(group) for group in groups]


def run_benchmark(
    benchmark: Benchmark, folder: Path, report_failure: Callable[[str, ImageError], None], quiet: bool = False
) -> list[Row]:
    """Measure all units and return their rows, reusing those that an earlier run with equal settings has saved.

    Args:
        benchmark: the benchmark.
        folder: directory for ``NAME-SETTINGS.jsonl``, which has one line for the settings and one per unit.
        report_failure: called for each unit that is skipped, with the reason.
        quiet: show no progress bar; it is shown on terminals only.

    Raises:
        OutputError: the directory cannot be written to.
    """
    from tqdm import tqdm

    settings = benchmark.settings
    path = folder / f"{benchmark.name}-{configuration_hash(settings)}.jsonl"
    with as_output_error(f"write to '{path}'"):
        folder.mkdir(parents=True, exist_ok=True)
        append_lines(path)  # so that there is a file
        rows_by_unit = _read(path)
        if not path.stat().st_size:
            append_lines(path, json.dumps({"settings": settings}, allow_nan=False))
        remaining = [unit for unit in benchmark.units if unit not in rows_by_unit]
        total = len(benchmark.units)
        num_done = total - len(remaining)
        bar = tqdm(
            remaining,
            benchmark.name,
            initial=num_done,
            total=total,
            unit=benchmark.unit,
            disable=quiet or None,
        )
        for unit in bar:
            try:
                rows_by_unit[unit] = [*benchmark.measure(unit)]
            except ImageError as error:
                with tqdm.external_write_mode():
                    report_failure(unit, error)
            else:
                append_lines(path, json.dumps({"unit": unit, "rows": rows_by_unit[unit]}, allow_nan=False))
    return [*chain.from_iterable(map(rows_by_unit.get, benchmark.units, repeat(())))]


def table(rows: Sequence[Row]) -> str:
    """Format rows with equal keys as a Markdown table."""
    body = [[_format(value) for value in row.values()] for row in rows]
    widths = [max(map(len, column)) for column in zip(rows[0], *body, strict=True)]
    is_text = [isinstance(value, str) for value in rows[0].values()]

    def line(cells: Iterable[str]) -> str:
        columns = zip(cells, widths, is_text, strict=True)
        aligned_cells = [cell.ljust(width) if text else cell.rjust(width) for cell, width, text in columns]
        return f"| {' | '.join(aligned_cells)} |"

    columns = zip(widths, is_text, strict=True)
    rule = ["-" * width if text else f"{'-' * (width - 1)}:" for width, text in columns]
    return "\n".join([line(rows[0]), line(rule), *map(line, body)])


def group_rows(rows: Iterable[Row], *keys: str) -> dict[tuple[Any, ...], list[Row]]:
    """Group rows by the values of a key, in order of first appearance, and each group by those of the other keys."""
    if not keys:
        return {(): [*rows]}
    *outer_keys, key = keys
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for values, group in group_rows(rows, *outer_keys).items():
        for row in group:
            groups.setdefault((*values, row[key]), []).append(row)
    return groups


def mean(rows: Sequence[Row], key: str) -> float:
    """Mean of a key's values."""
    total: float = sum(row[key] for row in rows)
    return total / len(rows)


def mean_with_interval(rows: Sequence[Row], key: str) -> Row:
    """The columns of a key's mean, and of its 95% interval over photos."""
    low, high = bootstrap_interval([row[key] for row in rows], [row[PHOTO] for row in rows])
    return {key: mean(rows, key), f"{key}, 95%": [low, high]}


def num_photos(rows: Sequence[Row]) -> int:
    """The number of photos that rows are about."""
    return len({row[PHOTO] for row in rows})


def _format(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    if isinstance(value, list):
        return " to ".join(map(_format, value))
    return "-" if value is None else str(value)


def _read(path: Path) -> dict[str, list[Row]]:
    """Read the rows by unit; what else is there is ignored, such as half a line, which a killed run may have left."""
    rows_by_unit: dict[str, list[Row]] = {}
    for entry in read_json_lines(path):
        match entry:
            case {"unit": str(unit), "rows": [*rows]} if all(isinstance(row, dict) for row in rows):
                rows_by_unit[unit] = rows
    return rows_by_unit


class ModelUnderTest:
    """A network with the methods and layers to compare.

    Args:
        spec: the network.
        layers: layer names, or ``"input"``; empty for the network's default layer; ``"best"`` for each
            method's best one of the other layers, or of all ``candidate_layers``.
        methods: names of methods, or ``CHANCE``.
        device: as for ``load_model``, or ``"auto"``.

    Raises:
        ConfigurationError: the network, a layer or the device does not exist, or a method does not apply to a layer.

    Attributes:
        loaded: the network as loaded.
        net: the network, made fully convolutional if necessary.
        num_classes: number of classes.
        settings: everything that results depend on.
        finds_best_layer: whether the table has each method at its best layer only.
    """

    def __init__(
        self,
        spec: ModelSpec,
        layers: Sequence[str] = (),
        methods: Sequence[str] = ("contrastive",),
        device: str = "auto",
    ) -> None:
        device = resolve_device(device)
        model = load_model(device=device, **vars(spec))
        if model.task != CLASSIFICATION:
            raise ConfigurationError(f"{spec.name} is for {model.task}, but benchmarks are for classifiers")
        self.device = torch.device(device)
        self.loaded = model
        self.num_classes = model.num_classes
        self.net = fully_convolutional(model.net).requires_grad_(False)
        self.finds_best_layer = BEST in layers
        if self.finds_best_layer:
            layers = [name for name in layers if name != BEST] or candidate_layers(model)
        with_maps = {layer.name for layer in model_layers(model) if layer.stride is not None}
        for name in layers:
            if name != INPUT and resolve_layer(model, name) not in with_maps:
                problem = f"layer {name!r} of {model.name} has no map"
                raise LayerError(f"{problem}: eb-saliency layers lists those that do")
        self._layers = list(dict.fromkeys(layers)) or [default_layer(model)]
        names = dict.fromkeys(methods)
        self._methods = [
            CHANCE_METHODS[name] if name in CHANCE_METHODS else find_method(name) for name in names
        ]
        check_methods(self._methods, self._layers == [INPUT])
        self.settings = network_settings(model) | {"layers": self._layers, "methods": [*names]}
        if files := [content_hash(Path(method.file)) for method in self._methods if method.file]:
            self.settings["method files"] = files
        self.probe(*model.transforms.shape)

    def choice(self, column: str, photos: Iterable[str]) -> LayerChoice | None:
        """How the best layer of each method is chosen, if that is asked for.

        Args:
            column: the column of rows whose mean is largest at the best layer.
            photos: all photos; half of them choose.

        Raises:
            ConfigurationError: there is only one photo.
        """
        if not self.finds_best_layer:
            return None
        return LayerChoice(column, half_of(photos))

    def probe(self, height: int, width: int) -> None:
        """Explain a blank image of that size, so that misfits are reported before any work starts.

        Raises:
            ConfigurationError: the network does not accept such images, or a method does not apply to a layer.
        """
        spec = replace(self.loaded.transforms, size=(height, width))
        probe(self.loaded.name, self.net, spec, lambda blank: list(self.explain(blank, [0], "probe")))

    def inputs(self, image: Image.Image, side: int | None = None) -> Tensor:
        """Preprocess an RGB image: its center crop, normalized, (1, 3, side, side).

        Args:
            image: the image.
            side: side of the crop; None for the preprocessing's own. The crop covers the same part of the image.
        """
        spec = self.loaded.transforms
        if side is not None:
            resize = tuple(round(length * side / spec.shape[0]) for length in spec.resize or ())
            spec = replace(spec, size=(side, side), resize=resize)
        return spec(image)[None].to(self.device)

    @property
    def side(self) -> int:
        """The shorter side of the network's own input, in pixels."""
        return min(self.loaded.transforms.shape)

    def whole_image(self, image: Image.Image) -> Tensor:
        """Preprocess a whole RGB image: its shorter side resized to ``side``, normalized, (1, 3, H, W)."""
        spec = replace(self.loaded.transforms, size=None, resize=(self.side,), fit=CROP)
        return spec(image)[None].to(self.device)

    def probabilities(self, inputs: Tensor) -> Tensor:
        """Scores (B, num_classes), by default softmax probabilities; see ``LoadedModel.scores``."""
        parts = inputs.split(1) if self.loaded.one_by_one else [inputs]
        with torch.no_grad():
            logits = torch.cat([mean_logits(self.net(part)) for part in parts])
            return self.loaded.to_scores(logits)

    def question(self, images: LabeledImages, key: str) -> tuple[Tensor, int]:
        """The input (1, 3, H, W) for an image, and the image's class; without labels, the most likely one."""
        inputs = self.inputs(images.read(key))
        if images.labels is None:
            return inputs, int(self.probabilities(inputs).argmax())
        return inputs, images.labels[key]

    def explain(
        self, inputs: Tensor, classes: Sequence[int], seed: str, net: Any = None
    ) -> Iterator[NamedMaps]:
        """Each method's maps at each layer.

        Args:
            inputs: one image, (1, 3, H, W).
            classes: K class indices.
            seed: random seed.
            net: another network of the same architecture to use instead.
        """
        targets = torch.tensor([classes], device=self.device)
        call = MethodCall(
            net=net or self.net,
            inputs=inputs,
            priors=lambda output: class_priors(targets, output),
            layers=[None if layer == INPUT else layer for layer in self._layers],
        )
        for method in self._methods:
            with torch.random.fork_rng(devices=[]):
                torch.default_generator.manual_seed(seed_of(seed))
                results = method.compute(call)
            for result in results:
                layer = NO_LAYER if method.place == PICTURE else result.layer or INPUT
                yield NamedMaps(method.name, layer, result.maps[0].float().cpu().numpy())


def mean_logits(output: Tensor) -> Tensor:
    """Logits (B, num_classes) of an output (B, num_classes, ...), averaged over positions."""
    if output.ndim <= 2:
        return output
    return output.flatten(2).mean(2)


def seed_of(text: str) -> int:
    """A random seed from a text, such as the name of an image."""
    return zlib.crc32(os.fsencode(text))


def fully_convolutional(net: nn.Module) -> nn.Module:
    """Make a network accept images of any size without pooling them to a fixed size.

    The linear layers of VGG and AlexNet become convolutions over the grid of features, so that larger images get
    logits per position, as Zhang et al. ran VGG (section 4.1). Other networks are returned unchanged: most of them
    average over the whole image. Modules keep their names.

    Args:
        net: a network of torchvision; the result shares its weights.
    """
    features = getattr(net, "features", None)
    pool = getattr(net, "avgpool", None)
    classifier = getattr(net, "classifier", None)
    if not (isinstance(pool, nn.AdaptiveAvgPool2d) and isinstance(classifier, nn.Sequential) and features):
        return net
    size: Any = pool.output_size
    if isinstance(size, int):
        size = (size, size)
    if size == (1, 1):
        return net
    layers = list(classifier)
    for i, module in enumerate(classifier):
        if isinstance(module, nn.Linear):
            channels = module.in_features // (size[0] * size[1])
            with torch.device("meta"):
                convolution = nn.Conv2d(channels, module.out_features, size)
            convolution.weight = nn.Parameter(module.weight.detach().unflatten(1, (channels, *size)))
            convolution.bias = module.bias
            layers[i] = convolution
            size = (1, 1)
    return nn.Sequential(OrderedDict(features=features, classifier=nn.Sequential(*layers))).eval()
