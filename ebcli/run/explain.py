"""One call from Python: the maps of images, with the command's defaults; or as the metrics of Quantus need them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, overload

import numpy as np
import torch
from numpy.typing import ArrayLike
from PIL import Image
from torch import Tensor, nn

from ebcli.datatypes.arrays import AnyArray, FloatArray
from ebcli.datatypes.explanation import Box, Explanation, Size
from ebcli.datatypes.input_spec import InputSpec
from ebcli.datatypes.windows import WindowSpec
from ebcli.drawing.overlay import heatmap
from ebcli.eb import excitation_backprop
from ebcli.eb.forward import unwrap
from ebcli.errors import ConfigurationError, ImageError, LayerError, plural
from ebcli.heads import HeadChoice
from ebcli.models import LoadedModel, default_layer, load_model
from ebcli.models.classes import NamesOfHeads
from ebcli.models.keywords import BUNDLED, CROP, DETECTION
from ebcli.models.running import default_batch_size, resolve_device
from ebcli.models.several_inputs import METHOD, PICTURE_AXES, Rows, is_image, takes_several
from ebcli.models.sources.in_memory import FunctionOfTensor
from ebcli.run.explainer import Explainer, Results
from ebcli.run.image_arguments import Frame, check_axes, check_kind, is_input, read_all
from ebcli.run.input_evidence import frame_at
from ebcli.run.network_description import in_a_sentence, target_names, warn_of_several
from ebcli.run.plan import RunPlan
from ebcli.run.plan_parts import CANDIDATES, WINDOWS, Values
from ebcli.run.saliency import Saliency

File = str | os.PathLike[str] | IO[bytes] | bytes | Image.Image
Array = AnyArray | Tensor
Targets = str | int | Sequence[str | int | Sequence[str | int]] | None
Place = tuple[int, int] | str | os.PathLike[str] | None
Layers = str | nn.Module | Sequence[str | nn.Module] | None

if TYPE_CHECKING:
    from typing import TypedDict, Unpack

    from ebcli.drawing.style import AnyStyle

    class Options(TypedDict, total=False):
        target: Targets
        targets: Targets
        layer: Layers
        against: Targets
        contrastive: bool
        method: str | Sequence[str] | None
        top_k: int | None
        candidates: str | os.PathLike[str] | None
        style: AnyStyle
        fit: str | None
        transform: Any
        class_names: NamesOfHeads
        scores: str | None
        where: Place
        boxes: Any
        head: HeadChoice
        columns: Sequence[str] | Mapping[str, Sequence[str]] | None


@overload
def explain(
    model: Any = ..., images: File = ..., *classes: Targets, **options: Unpack[Options]
) -> Saliency: ...


@overload
def explain(
    model: Any, images: list[Any] | tuple[Any, ...], *classes: Targets, **options: Unpack[Options]
) -> list[Saliency]: ...


@overload
def explain(model: Any, images: Array, *classes: Targets, **options: Unpack[Options]) -> Any: ...


def explain(
    model: Any = BUNDLED,
    images: Any = None,
    *classes: Targets,
    target: Targets = None,
    targets: Targets = None,
    layer: Layers = None,
    against: Targets = None,
    contrastive: bool = True,
    method: str | Sequence[str] | None = None,
    top_k: int | None = None,
    candidates: str | os.PathLike[str] | None = None,
    style: AnyStyle = "overlay",
    fit: str | None = None,
    transform: Any = None,
    class_names: NamesOfHeads = None,
    scores: str | None = None,
    where: Place = None,
    boxes: Any = None,
    head: HeadChoice = None,
    columns: Sequence[str] | Mapping[str, Sequence[str]] | None = None,
) -> Any:
    """Explain the predictions of a network for images, with the command's defaults: whole, default layer, contrastive.

    The network may be used by other threads at the same time, and by several calls; meanwhile, all of them see it in
    evaluation mode. Afterwards it is as it was.

    Args:
        model: a name for `load_model`, which loads it at each call; a `LoadedModel`; any `torch.nn.Module`; a model or
            a pipeline of Hugging Face; or a function from images (B, C, H, W) to logits, together with modules as
            `layer`, which runs as it is.
        images: a path, a URL, a Pillow image, an open file or its bytes, an array (H, W) or (H, W, 3), or a tensor
            (3, H, W). An open image is read as its file. Arrays and tensors are images if they are of 8 bits, or arrays
            of floats from 0 to 1; with a `range`, other arrays are in its units. A tensor of floats is the network's
            input as it is, preprocessed. A list of these, or a batch with another axis in front, gives a list
            of results; images of one size share a batch. For a network with several inputs, a tuple of all of its
            tensors, as the network gets them, or a mapping of their names; either one row of each, with a picture
            (C, H, W), or a batch of each. The first that looks like a picture is drawn, and other pictures beside it.
            Beside one row of numbers, lists or arrays, the only picture can also be an image, as above.
        classes: classes to explain in every image, by name or index, also in a list; any texts for `clip/NAME`. A list
            of lists has the classes of each image: `[[1], [2], [4]]`. None for the most likely class, or for all
            detections or segments.
        target: the same by keyword.
        targets: the same by keyword.
        layer: the layer of the maps, or several: names or modules; `"input"` for the pixels. Of a network with several
            inputs, `"input:1"`, or `"input:NAME"` by the name of the argument, is another input. Its map has the
            shape of this input. The name alone will do if no module has it. None for the model's default layer.
        against: classes to contrast with. None for the class's own dual.
        contrastive: contrastive maps, other than `excitation_backprop`; marginal ones if False.
        method: the method of the maps, or several, by name: `contrastive`, `marginal`, `object`, `grad-cam` or another
            one of docs/methods.md. None for what `contrastive` says.
        top_k: the number of most likely classes, in place of targets; None for 1, except in an atlas.
        candidates: the classes to compare, in place of targets: `windows` for the likeliest of nine windows of each
            image, `photo` for the 20 likeliest of the image, or a file with one class per line. None for `windows` in
            an atlas.
        style: how maps are drawn: `atlas`, or a style of `draw_map`.
        fit: how images are fitted: `whole`, `crop`, `squash` or `pad`, see `Preprocessing`. None for the whole image,
            unless the model was loaded with a crop or a fit of its own.
        transform: of a `torch.nn.Module`, what makes its input of an image; see `load_model`.
        class_names: the names of the classes, for models that do not know them; or a mapping of heads to names.
        scores: how outputs become scores: `softmax`, `sigmoid`, or `raw` for numbers instead of classes; see
            `load_model`.
        where: of a segmentation network or one that returns maps of values, explain this pixel (x, y) of each image, or
            the bright pixels of this image file. None for whole segments, and for the mean of the values.
        boxes: of a detector, explain the detections nearest to these boxes (N, 4), left, top, right and bottom in
            pixels; or `Detections` of supervision. None for all detections.
        head: of a network that returns several tensors, the one to explain, by name or position; see `load_model`.
        columns: the names of the columns of a table (B, columns) among several inputs, or a mapping of the names of
            inputs to those of their columns. None for numbers.

    Returns:
        The maps of the image, or a list of these.

    Raises:
        ConfigurationError: the model, a class, the layer or the style does not exist or does not fit, or the
            preprocessing is unknown.
        ImageError: an image cannot be read, or nothing is found in it. Of a list, it is named, and no results return:
            to go on without it, call this for each image.
        UnsupportedOpError: the network has operations without an excitation rule.

    Examples:
        >>> import ebcli
        >>> found = ebcli.explain("efficientnet_lite0", "sample_images/coffee.jpg", "espresso", "cup")
        >>> found.classes
        ['espresso', 'cup']
        >>> found.heatmap().shape, found.strength[0] > 0
        ((2, 400, 600), True)
        >>> import torch, torchvision
        >>> net = torchvision.models.resnet18(num_classes=5)
        >>> [one.heatmap().shape for one in ebcli.explain(net, torch.rand(2, 3, 64, 64), target=3)]
        [(1, 64, 64), (1, 64, 64)]
    """
    layers = [layer] if isinstance(layer, (str, nn.Module)) else [*(layer or ())]
    others: Sequence[Any] = ()
    is_list = isinstance(images, (list, tuple)) or getattr(images, "ndim", 0) == 4  # or a batch
    if _has_several_inputs(model, images):
        model, rows = _take_apart(model, images, columns, layers)
        images = rows.pictures
        others = rows.others
        is_list = rows.is_batch
    elif columns is not None:
        raise ConfigurationError("columns are those of tables: pass a tuple of all inputs, or drop columns")
    all_images = [*images] if isinstance(images, (list, tuple)) or is_list else [images]
    check_axes(all_images, least=1 if others else 2)  # beside others, one may be a table
    shapes = [tuple(image.shape) if is_input(image) else None for image in all_images]
    if None not in shapes and fit is not None:
        raise ConfigurationError("a tensor of floats is the network's input as it is: drop fit")
    if None in shapes and set(shapes) != {None}:
        raise ConfigurationError(
            "tensors of floats are inputs, the other images are not: pass them in two calls"
        )
    corners = () if boxes is None else getattr(boxes, "xyxy", boxes)
    places: list[Any] = [Box(*map(float, edges)) for edges in corners]
    if where is not None:
        if places:
            raise ConfigurationError("boxes are for detectors, where is for other networks: drop one of them")
        places = [Path(where) if isinstance(where, (str, os.PathLike)) else _pixel(where)]
    values = {
        "images": (Path("image"),),
        "against": _flat(against),
        **_methods(method, contrastive),
        "top_k": top_k,
        "candidates": _candidates(candidates),
        "style": style,
        "fit": fit,
        "where": next(iter(places), None),
    }
    image_targets = _targets_of(len(all_images), *classes, target, targets)
    groups = [*zip(shapes, image_targets, strict=True)]
    results: dict[int, Saliency] = {}
    for group in dict.fromkeys(groups):  # inputs of each size, and with other classes, by themselves
        shape, values["target"] = group
        spec = None
        if shape is not None:
            (channels,) = shape[:-2] or (1,)
            spec = InputSpec.as_is(shape[-2:], channels)
        plan, network = _make_plan(model, transform, class_names, scores, head, layers, spec, values)
        numbers = [i for i, item in enumerate(groups) if item == group]
        frames = read_all([all_images[i] for i in numbers], network.transforms)
        if plan.maps.candidates == WINDOWS:
            frames = _with_windows(frames, [all_images[i] for i in numbers], network.transforms)
        if others:
            pairs = zip(frames, numbers, strict=True)
            frames = [(replace(item, others=others[i]), frame) for (item, frame), i in pairs]
        group_results = _explain(plan, network, frames, places[1:])
        results |= zip(numbers, group_results, strict=True)
    saliencies = [results[i] for i in sorted(results)]
    return saliencies if is_list else saliencies[0]


def _candidates(choice: str | os.PathLike[str] | None) -> str | os.PathLike[str] | None:
    """How the classes to compare are chosen: by a word, or by a file."""
    return choice if choice is None or choice in CANDIDATES else Path(choice)


def _methods(method: str | Sequence[str] | None, contrastive: bool) -> Values:
    """The values of a plan that say which methods compute the maps."""
    if method is None:
        return {"contrastive": contrastive}
    values: Values = {"method": method if isinstance(method, str) else tuple(method)}
    if not contrastive:
        values["contrastive"] = False
    return values


def _pixel(place: Sequence[int]) -> Size:
    """A pixel (x, y)."""
    x, y = map(int, place)
    return x, y


def _with_windows(frames: Sequence[Frame], images: Sequence[Any], spec: InputSpec) -> list[Frame]:
    """The same with what the network gets of windows of each image."""
    windows = [item.pixels for item, _ in read_all(images, WindowSpec.from_spec(spec))]
    return [
        (replace(item, windows=pixels), frame) for (item, frame), pixels in zip(frames, windows, strict=True)
    ]


def _targets_of(count: int, *targets: Any) -> list[tuple[str, ...]]:
    """The classes of each of so many images.

    Raises:
        ConfigurationError: there are rows, but not one for each image; or a list could be such rows.
    """
    lists = [target.tolist() if hasattr(target, "tolist") else target for target in targets]
    rows = next(filter(_has_rows, lists), None)
    if rows is None:
        for item in lists:
            _check_list(item, count)
        return [_flat(*lists)] * count
    if len(rows) != count:
        raise ConfigurationError(
            f"targets have {plural(len(rows), 'row')}, but there are {plural(count, 'image')}"
        )
    others = [item for item in lists if item is not rows]
    return [_flat(*others, row) for row in rows]


def _check_list(classes: Any, count: int) -> None:
    """Raise ConfigurationError if classes could be those of every image, or of one image each."""
    if count > 1 and isinstance(classes, (list, tuple)) and len(classes) == count:
        names = [*map(repr, classes)]
        each = ", ".join(f"[{name}]" for name in names)
        raise ConfigurationError(
            f"{count} classes for {count} images can mean two things: pass targets=[{each}] for one class per image, "
            f"or explain(model, images, {', '.join(names)}) for all classes of every image"
        )


def _has_rows(targets: Any) -> bool:
    """Whether targets are a list of lists: the classes of each image."""
    return isinstance(targets, (list, tuple)) and any(isinstance(row, (list, tuple)) for row in targets)


def _flat(*targets: Targets) -> tuple[str, ...]:
    """Names and indices, some of them in lists, as texts."""
    names: list[str] = []
    for target in targets:
        if isinstance(target, (list, tuple)):
            names += map(str, target)
        elif target is not None:
            names.append(str(target))
    return tuple(names)


def _make_plan(
    model: Any,
    transform: Any,
    class_names: Any,
    scores: str | None,
    head: HeadChoice,
    layers: Sequence[Any],
    spec: InputSpec | None,
    values: Values,
) -> tuple[RunPlan, LoadedModel]:
    """The plan, and the network with its preprocessing; with a `spec` if it gets inputs of that size as they are."""
    modules = [layer for layer in layers if isinstance(layer, nn.Module)]
    network = _load(model, modules, transform, class_names, scores, head, spec)
    settings: Values = {"model": model, "scores": scores, "head": None if head is None else str(head)}
    names: dict[Any, str] = {}
    if network is not None:  # texts that are its classes are so already
        check_kind(network.transforms)
        settings |= {"model": network.name, "head": network.head, "class_names": ()}
        settings |= vars(network.preprocessing)
        names = {module: name for name, module in network.net.named_modules()}
        if values["fit"] is not None and network.transforms.function is not None:
            raise ConfigurationError("transform says how images are fitted: drop fit")
    for module in modules:
        if module not in names:
            problem = f"this {type(module).__name__} is not a module of the network"
            raise LayerError(f"{problem}: give the layer's name")
    settings |= {name: value for name, value in values.items() if value is not None}
    if spec is not None:
        settings["fit"] = CROP
    plan = RunPlan.from_values(**settings, layer=tuple(names.get(layer, layer) for layer in layers))
    if network is None:
        network = load_model(device=resolve_device("auto"), **vars(plan.model))
    if spec is not None and network.task != DETECTION:
        return plan, replace(network, transforms=replace(spec, network=network.name), fit=None)
    return plan, network.with_preprocessing(plan.model.preprocessing)


def _load(
    model: Any,
    modules: Sequence[nn.Module],
    transform: Any,
    class_names: Any,
    scores: str | None,
    head: HeadChoice,
    spec: InputSpec | None,
) -> LoadedModel | None:
    """The network; None if it is a name, which the plan's settings load."""
    if isinstance(model, LoadedModel):
        if (transform, class_names, scores, head) != (None, None, None, None):
            advice = "pass transform, class_names, scores and head to load_model()"
            raise ConfigurationError(f"{model.name} is loaded already: {advice}")
        return model
    if isinstance(model, str):
        if class_names is None:
            return None
        return load_model(model, class_names=class_names, transform=transform, scores=scores, head=head)
    is_function = (
        callable(model) and not isinstance(model, nn.Module) and not hasattr(model, "image_processor")
    )
    if modules and is_function:
        model = FunctionOfTensor(model, modules)
    return load_model(model, class_names=class_names, transform=spec or transform, scores=scores, head=head)


def _has_several_inputs(model: Any, images: Any) -> bool:
    """Whether these are all inputs of a network that has several, rather than several images."""
    if isinstance(images, Mapping):
        return True
    if not isinstance(images, tuple):
        return False
    if not all(isinstance(image, Tensor) for image in images):
        is_alone = callable(getattr(model, METHOD, None)) or not takes_several(unwrap(model))
        return not (is_alone and all(map(_may_be_image, images)))
    axes = {image.ndim for image in images}
    if len(axes) > 1 or max(axes, default=0) > PICTURE_AXES:
        return True
    if isinstance(model, LoadedModel):
        return model.inputs is not None
    return takes_several(model)


def _may_be_image(value: Any) -> bool:
    """Whether a value could be an image by itself, rather than numbers beside one."""
    return is_image(value) or getattr(value, "ndim", 0) > 1


def _take_apart(model: Any, images: Any, columns: Any, layers: Sequence[Any]) -> tuple[Any, Rows]:
    """A network that gets pictures alone, and the rows of all of its inputs."""
    if isinstance(model, str):
        model = load_model(model)
    if isinstance(model, LoadedModel):
        if model.inputs is None:
            raise ConfigurationError(
                f"{model.name} has one input, but several were passed: pass the image alone"
            )
        rows = Rows.of(model.net, images, columns)
        if columns is not None:
            model = replace(model, inputs=model.inputs.with_columns(rows.inputs.columns))
        return model, rows
    model = unwrap(model)
    rows = Rows.of(model, images, columns)
    modules = [layer for layer in layers if isinstance(layer, nn.Module)]
    if not isinstance(model, nn.Module) and callable(model):
        model = FunctionOfTensor(model, modules)
    return rows.inputs.fill_in(model), rows


def _explain(
    plan: RunPlan, network: LoadedModel, pairs: Sequence[Frame], other_boxes: Sequence[Box]
) -> list[Saliency]:
    inputs = [item for item, _ in pairs]
    # the number of images that can share a batch
    largest = max(Counter(item.form for item in inputs).values())
    device = next(network.net.parameters(), torch.empty(0)).device
    plan = plan.replace(batch_size=min(largest, default_batch_size(str(device))))
    explainer = Explainer(plan, len(pairs), network)
    explainers = [explainer, *(explainer.with_options(replace(plan.maps, where=box)) for box in other_boxes)]
    order = sorted(range(len(inputs)), key=lambda i: repr(inputs[i].form))
    by_image: list[Results] = [[] for _ in inputs]
    for box_explainer in explainers:
        for i, explanation in zip(order, box_explainer.explain([inputs[i] for i in order]), strict=True):
            by_image[i].append(explanation)
    warn_of_several(explainer.network, target_names(plan.maps))
    subtitle = in_a_sentence(explainer.network.provenance_of_picture())
    results = []
    (first_layer, *_) = explainer.network.layers
    for number, (explanations, (item, frame)) in enumerate(zip(by_image, pairs, strict=True), start=1):
        prefix = f"image {number} of {len(pairs)}: " if len(pairs) > 1 else ""
        joined = Explanation(maps=[], seconds=0)
        for explanation in explanations:
            if isinstance(explanation, ImageError):
                raise ImageError(f"{prefix}{explanation}") from explanation
            joined = replace(explanation, maps=[*joined.maps, *explanation.maps])
        if not joined.maps:
            raise ImageError(f"{prefix}{network.name} finds nothing to explain: name a class")
        results.append(Saliency(joined, frame_at(network, first_layer, item, frame), plan, subtitle))
    return results


def quantus_explain(
    model: nn.Module,
    inputs: ArrayLike,
    targets: ArrayLike,
    *,
    layer: str | nn.Module | None = None,
    contrastive: bool = True,
    device: Any = None,
    head: HeadChoice = None,
    **_extras: Any,
) -> FloatArray:
    """Maps as Quantus' ``explain_func`` returns them: the positive parts at the size of the inputs, (B, 1, H, W).

    Args:
        model: the network.
        inputs: (B, C, H, W), preprocessed.
        targets: class indices (B,).
        layer: the layer of the maps, a module or its name; None for the default layer.
        contrastive: contrastive maps; marginal ones if False.
        device: where the inputs go; None for the network's own device.
        head: the head to explain; see `load_model`.

    Examples:
        >>> import ebcli, torch
        >>> net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(),
        ...                           torch.nn.Linear(8 * 36, 10))
        >>> ebcli.quantus_explain(net, torch.rand(2, 3, 8, 8).numpy(), [4, 7], layer="1").shape
        (2, 1, 8, 8)
    """
    parameter = next(model.parameters(), torch.empty(0))
    images = torch.as_tensor(np.asarray(inputs)).to(device or parameter.device, parameter.dtype)
    height, width = images.shape[-2:]
    if layer is None:
        layer = default_layer(model, (height, width), head=head)
    classes = np.asarray(targets).tolist()
    result = excitation_backprop(model, images, classes, layer, contrastive=contrastive, head=head)
    region = Box(0, 0, width, height)
    maps = result.maps.float().cpu().numpy()
    return np.stack([heatmap(map_, region, (width, height), signed=False)[None] for map_ in maps])
