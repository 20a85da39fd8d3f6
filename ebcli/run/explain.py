"""One call from Python: the maps of images, with the command's defaults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import torch
from torch import nn

from ebcli.errors import ConfigurationError, ImageError, LayerError
from ebcli.models import LoadedModel, load_model
from ebcli.models.device import default_batch_size, resolve_device
from ebcli.models.keywords import BUNDLED, CROP, DETECTION
from ebcli.models.sources.given import FunctionOfTensor
from ebcli.nouns.box import Box
from ebcli.nouns.explanation import Explanation
from ebcli.nouns.input_spec import InputSpec
from ebcli.run.explainer import Explainer
from ebcli.run.given_images import Array, File, is_input, listed, read_all
from ebcli.run.network_description import in_a_sentence
from ebcli.run.plan import RunPlan
from ebcli.run.saliency import Saliency

Targets = str | int | Sequence[str | int] | None
Layers = str | nn.Module | Sequence[str | nn.Module] | None

if TYPE_CHECKING:
    from typing import TypedDict

    from typing_extensions import Unpack

    from ebcli.drawing.style import AnyStyle

    class Options(TypedDict, total=False):
        target: Targets
        targets: Targets
        layer: Layers
        against: Targets
        contrastive: bool
        top_k: int | None
        style: AnyStyle
        fit: str | None
        transform: Any
        categories: Sequence[str] | None
        boxes: Any


@overload
def explain(model: Any = ..., images: File = ..., *classes: Targets, **options: Unpack[Options]) -> Saliency: ...


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
    top_k: int | None = None,
    style: AnyStyle = "overlay",
    fit: str | None = None,
    transform: Any = None,
    categories: Sequence[str] | None = None,
    boxes: Any = None,
) -> Any:
    """Explain the predictions of a network for images, with the command's defaults: whole, default layer, contrastive.

    The network may be used by other threads at the same time, and by several calls; meanwhile, all of them see it in
    evaluation mode. Afterwards it is as it was.

    Args:
        model: a name for `load_model`, which loads it at each call; a `LoadedModel`; any `torch.nn.Module`; a model or
            a pipeline of Hugging Face; or a function from images (B, C, H, W) to logits, together with modules as
            `layer`, which runs as it is.
        images: a path, a URL, a Pillow image, an open file, an array (H, W) or (H, W, 3), or a tensor (3, H, W). Arrays
            and tensors are images if they are of 8 bits, or arrays of floats from 0 to 1. A tensor of floats is the
            network's input as it is, preprocessed. A list of these, or a batch with another axis in front, gives a list
            of results; images of one size share a batch.
        classes: classes to explain, by name or index, also in a list; any texts for `clip/NAME`. None for the most
            likely class, or for all detections or segments.
        target: the same by keyword.
        targets: the same by keyword.
        layer: the layer of the maps, or several: names or modules; `"input"` for the pixels. None for the model's
            default layer.
        against: classes to contrast with. None for the class's own dual.
        contrastive: contrastive maps; marginal ones if False.
        top_k: the number of most likely classes, in place of targets; None for 1, or 20 for an atlas.
        style: how maps are drawn: `atlas`, or a style of `draw_map`.
        fit: how images are fitted: `whole`, `crop`, `squash` or `pad`, see `Preprocessing`. None for the whole image,
            unless the model was loaded with settings of its own.
        transform: of a `torch.nn.Module`, what makes its input of an image; see `load_model`.
        categories: the names of the classes, for models that do not know them.
        boxes: of a detector, explain the detections nearest to these boxes (N, 4), left, top, right and bottom in
            pixels; or `Detections` of supervision. None for all detections.

    Returns:
        The maps of the image, or a list of these.

    Raises:
        ConfigurationError: the model, a class, the layer or the style does not exist or does not fit, or the
            preprocessing is unknown.
        ImageError: an image cannot be read, or nothing is found in it.
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
    found, several = listed(images)
    tensors = [tuple(one.shape) if is_input(one) else None for one in found]
    if None in tensors and set(tensors) != {None}:
        raise ConfigurationError("tensors of floats are inputs, the other images are not: pass them in two calls")
    if fit is not None and None not in tensors:
        raise ConfigurationError("a tensor of floats is the network's input as it is: drop fit")
    layers = (layer,) if isinstance(layer, (str, nn.Module)) else tuple(layer or ())
    values: dict[str, Any] = {
        "images": (Path("image"),),
        "target": _flat(*classes, target, targets),
        "against": _flat(against),
        "contrastive": contrastive,
        "top_k": top_k,
        "style": style,
    }
    places = [Box(*map(float, one)) for one in getattr(boxes, "xyxy", () if boxes is None else boxes)]
    if places:
        values["where"] = places[0]
    results: dict[int, Saliency] = {}
    for shape in dict.fromkeys(tensors):  # inputs of each size by themselves
        spec = None if shape is None else InputSpec.as_is(shape[-2:], shape[0] if len(shape) == 3 else 1)
        plan, loaded = _planned(model, transform, categories, layers, fit, spec, values)
        numbers = [i for i, one in enumerate(tensors) if one == shape]
        made = _explained(plan, loaded, [found[i] for i in numbers], places[1:])
        results |= dict(zip(numbers, made, strict=True))
    return [results[i] for i in range(len(found))] if several else results[0]


def _flat(*targets: Targets) -> tuple[str, ...]:
    """Names and indices, some of them in lists, as texts."""
    each = (some if isinstance(some, (list, tuple)) else (some,) for some in targets if some is not None)
    return tuple(str(one) for some in each for one in some)


def _planned(
    model: Any,
    transform: Any,
    categories: Sequence[str] | None,
    layers: Sequence[str | nn.Module],
    fit: str | None,
    spec: InputSpec | None,
    values: dict[str, Any],
) -> tuple[RunPlan, LoadedModel]:
    """The plan, and the network with its preprocessing; with a `spec` if it gets inputs of that size as they are."""
    if isinstance(model, LoadedModel) and (transform is not None or categories is not None):
        raise ConfigurationError(f"{model.name} is loaded already: pass transform and categories to load_model()")
    loaded = model if isinstance(model, LoadedModel) else None
    modules = [one for one in layers if isinstance(one, nn.Module)]
    if isinstance(model, str) and categories is None:
        values = values | {"model": model}
    elif loaded is None:
        if modules and callable(model) and not isinstance(model, nn.Module) and not hasattr(model, "image_processor"):
            model = FunctionOfTensor(model, modules)
        as_is = None if isinstance(model, str) else spec
        loaded = load_model(model, class_names=categories, transform=as_is or transform)
    if loaded is not None:  # texts that are its classes are so already
        values = values | {"model": loaded.name, "class_names": (), **vars(loaded.preprocessing)}
        if fit is not None and loaded.transforms.function is not None:
            raise ConfigurationError("transform says how images are fitted: drop fit")
    values = values | {"fit": CROP} if spec else values | ({} if fit is None else {"fit": fit})
    names = {} if loaded is None else {module: name for name, module in loaded.net.named_modules()}
    if missing := [one for one in modules if one not in names]:
        raise LayerError(f"this {type(missing[0]).__name__} is not a module of the network: give the layer's name")
    plan = RunPlan.of(**values, layer=tuple(one if isinstance(one, str) else names[one] for one in layers))
    if loaded is None:
        loaded = load_model(device=resolve_device("auto"), **vars(plan.model))
    if spec is not None and loaded.task != DETECTION:
        return plan, replace(loaded, transforms=replace(spec, network=loaded.name), fit=None)
    return plan, loaded.with_preprocessing(plan.model.preprocessing)


def _explained(plan: RunPlan, loaded: LoadedModel, images: Sequence[Any], other_boxes: Sequence[Box]) -> list[Saliency]:
    both = read_all(images, loaded.transforms)
    inputs = [one for one, _ in both]
    largest = max(Counter(one.form for one in inputs).values())  # the number of images that can share a batch
    device = next(loaded.net.parameters(), torch.empty(0)).device
    plan = plan.but(batch_size=min(largest, default_batch_size(str(device))))
    explainer = Explainer(plan, len(images), loaded)
    order = sorted(range(len(inputs)), key=lambda i: repr(inputs[i].form))
    asked = [explainer, *(explainer.asked(replace(plan.maps, where=box)) for box in other_boxes)]
    found = dict(zip(order, zip(*(one.explain([inputs[i] for i in order]) for one in asked), strict=True), strict=True))
    about, several = in_a_sentence(explainer.network.provenance_of_picture()), len(images) > 1
    results = []
    for i, (_, shown) in enumerate(both):
        which, made = f"image {i + 1} of {len(both)}: " * several, list[Explanation]()
        for one in found[i]:  # of several boxes
            if isinstance(one, ImageError):
                raise ImageError(f"{which}{one}") from one
            made.append(one)
        if not made[0].maps:
            raise ImageError(f"{which}{loaded.name} finds nothing to explain: name a class")
        maps = [map_ for one in made for map_ in one.maps]
        results.append(Saliency(replace(made[0], maps=maps), shown, plan, about))
    return results
