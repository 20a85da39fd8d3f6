"""Loading a network by name, ready to classify images."""

import os
import threading
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import Module

from ebcli.datatypes.input_spec import InputSpec
from ebcli.eb.forward import evaluating
from ebcli.errors import ConfigurationError, EbcliError
from ebcli.imports import guard_user_code, name_in_errors
from ebcli.layouts import modules_of
from ebcli.models.checkpoint import check_finite, read_checkpoint
from ebcli.models.classes import Names, check_texts, printable, read_class_names
from ebcli.models.detection import Candidates, DetectionScores, is_detector, recognize
from ebcli.models.keywords import (
    BUNDLED,
    CLASSIFICATION,
    DEFAULT,
    DETECTION,
    RAW,
    SCORES,
    SEGMENTATION,
    SIGMOID,
    SOFTMAX,
    UNTRAINED,
    VIDEO,
    WHOLE,
)
from ebcli.models.loaded import LoadedModel
from ebcli.models.running import checked_device, output_shape, probe
from ebcli.models.several_inputs import inputs_of, with_own_inputs
from ebcli.models.sources import is_network_file, source_of
from ebcli.models.sources.base import ModelSource
from ebcli.models.sources.in_memory import source_given
from ebcli.models.sources.similarity import with_reference_pictures
from ebcli.models.spec import Preprocessing

FilePath = str | os.PathLike[str]

_seeding = threading.RLock()  # of the generator that all threads share


def load_model(
    name: Any = BUNDLED,
    weights: FilePath | None = DEFAULT,
    device: str | torch.device | None = None,
    *,
    transform: Any = None,
    class_names: FilePath | Sequence[str] | None = None,
    like: FilePath | Sequence[FilePath] = (),
    preprocessing: Preprocessing | None = None,
    scores: str | None = None,
) -> LoadedModel:
    """Build a network, load its weights and move it to a device.

    The default is the bundled EfficientNet-Lite0, which needs no download. Other examples:

        load_model("vgg16")                                    # torchvision, with its best weights
        load_model("resnet50", weights="finetuned.pth")        # your own checkpoint
        load_model("fasterrcnn_resnet50_fpn")                  # a detector; segmentation and video likewise
        load_model("timm/convnext_tiny")                       # timm
        load_model("hf/microsoft/resnet-50")                   # Hugging Face hub; hf/my_model for a local directory
        load_model("nets.py:small", class_names="labels.txt")  # the function small() in nets.py, which is executed
        load_model("net.onnx")                                 # an ONNX file
        load_model("net.pt2")                                  # a program of torch.export, which can run code
        load_model("clip/openai/clip-vit-base-patch32", class_names=["a red car", "a blue car"])  # texts
        load_model("timm/vit_small_patch14_dinov2", like="other.jpg")  # another picture

    The last two return a network whose logits are cosine similarities of the image's embedding: with the embeddings of
    texts, or of pictures. With `like`, a classifier is cut below its last linear layer.

    A checkpoint determines the number of classes. A torchvision or timm network with 1000 classes gets ImageNet's
    class names. Untrained networks are the same in every call, and the global random state is left unchanged.

    A network in memory keeps its weights, its device, its mode and its hooks:

        load_model(net, transform=weights.transforms(), class_names=names)
        load_model(transformers.pipeline("image-classification", ...))

    Args:
        name: one of ``model_names()``, ``timm/NAME``, ``hf/NAME``, ``clip/NAME``, ``open_clip/NAME``,
            ``FILE.onnx``, ``FILE.pt2``, ``FILE.py:FACTORY`` or ``MODULE:FACTORY``; or a network, a model or a pipeline
            of Hugging Face.
        weights: ``"DEFAULT"``, the name of one of the model's weights, a checkpoint file (a state dict saved by
            ``torch.save`` or safetensors, with or without the usual wrappers), or ``"none"``. For a factory,
            ``"DEFAULT"`` and ``"none"`` both mean the network as it returns it.
        device: any PyTorch device; None for the CPU, or for the device of a network in memory.
        transform: of a network in memory, what makes its input (C, H, W) of a Pillow image: a preset of torchvision,
            an image processor of Hugging Face, or any function, whose crop is measured. None if that is unknown.
        class_names: class names in the order of the logits, or a file with them; see ``read_class_names``. For
            ``clip/NAME`` and ``open_clip/NAME``, any texts, and for detectors of ``hf/NAME`` that read them.
        like: one or several pictures, files, that become the classes.
        preprocessing: settings that replace those of the weights.
        scores: how logits become scores: ``"softmax"``, ``"sigmoid"`` or ``"raw"``; None for the model's own way, which
            is raw for similarities and for regression, sigmoid for multi-label models and for a single logit, else
            softmax. Softmax and sigmoid of CLIP's and SigLIP's similarities use the temperature and bias that the model
            was trained with.

    Raises:
        ConfigurationError: the model, weights or device do not exist, the checkpoint, class names or preprocessing
            do not fit, the weights contain NaN or infinity, a picture cannot be read, or a download failed.

    Examples:
        >>> import ebcli
        >>> ebcli.load_model().name
        'efficientnet_lite0'
        >>> net = ebcli.load_model("resnet18", weights="none").net
        >>> net.training
        False
    """
    if scores not in (None, *SCORES):
        raise ConfigurationError(f"unknown scores {scores!r}: choose {', '.join(SCORES)}")
    has_name = isinstance(name, str)
    if has_name and transform is not None:
        raise ConfigurationError(
            f"{name} has its own preprocessing: pass preprocessing= instead of transform="
        )
    if device is not None or has_name:
        device = checked_device(device or "cpu")
    if isinstance(class_names, (str, os.PathLike)):
        class_names = read_class_names(Path(class_names))
    if isinstance(like, (str, os.PathLike)):
        like = [like]
    settings = preprocessing or Preprocessing()
    load = partial(_load, str(weights), device, class_names, list(map(Path, like)), settings, scores)
    if has_name:
        return load(*source_of(name))
    source = source_given(name, preprocessing if transform is None else transform)
    with evaluating(source.network_given):
        return load(source.name, source)


def _load(
    weights: str,
    device: torch.device | None,
    class_names: Names,
    pictures: Sequence[Path],
    settings: Preprocessing,
    scores: str | None,
    name: str,
    source: ModelSource,
) -> LoadedModel:
    source.headless = bool(pictures)
    if source.takes_texts() and not pictures:
        check_texts(name, class_names)
    with guard_user_code(name), name_in_errors(name), _seeding, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        net, label, files = _with_weights(source, weights, name)
        net = with_own_inputs(net)
        check_finite(net, f"{label} for {name}")
        task = source.task(net)
        if is_detector(net):
            task = task or DETECTION
        default_spec = _default_spec(source, name, net, label, settings)
        names = source.categories(net, label) if class_names is None else class_names
        if pictures:
            if task not in (None, CLASSIFICATION):
                raise ConfigurationError(
                    f"{name} is for {task}, but --similar-to needs a classifier or features"
                )
            backbone = source.with_features(net, label)
            net = backbone or net
            spec = _fit_input(source, net, replace(settings, tiles=None), default_spec)
            net = with_reference_pictures(name, net, pictures, spec, is_backbone=backbone is not None)
            files = (*files, *pictures)
            names = class_names or list(map(str, pictures))
            scores = scores or RAW
        elif source.takes_texts() and class_names is not None:
            scores = scores or RAW
            net = source.with_texts(net, class_names, scores)
        scores = scores or source.scores(net)
        categories = () if names is None else tuple(map(printable, names))
        net = net.eval()
        if device is not None:
            net = net.to(device)
        if is_detector(net):
            net = DetectionScores(net)
    task, count = _probe_task(net, settings.apply(default_spec), task, len(categories))
    if class_names is not None and len(class_names) != count:
        raise ConfigurationError(f"there are {len(class_names)} class names, but {name} has {count} classes")
    is_detection = task == DETECTION
    fit = partial(_fit_input, source, net, default_spec=default_spec, of_detector=is_detection)
    return LoadedModel(
        name,
        net,
        transforms=fit(settings),
        categories=categories if len(categories) == count else None,
        weights=label,
        num_classes=count,
        files=files,
        scores=scores or (SIGMOID if count == 1 else SOFTMAX),
        task=task,
        one_by_one=source.one_by_one or inputs_of(net) is not None,
        preprocessing=settings,
        fit=fit,
        inputs=inputs_of(net),
    )


def _default_spec(
    source: ModelSource, name: str, net: Module, label: str, settings: Preprocessing
) -> InputSpec:
    """The network's own preprocessing. Raises ConfigurationError if settings do not fit it."""
    if is_detector(net):
        if settings not in (Preprocessing(), Preprocessing(fit=WHOLE)):
            problem = f"{name} preprocesses images itself"
            raise ConfigurationError(f"{problem}: drop --resize, --crop, --tiles, --mean, --std")
        return InputSpec.as_is()
    default_spec = replace(InputSpec.from_preset(source.transforms(net, label)), network=name)
    if source.assumption and label != UNTRAINED and settings.mean is None and settings.std is None:
        warnings.warn(f"{name} {source.assumption}", stacklevel=4)
    settings.apply(default_spec)  # or else the settings are at fault
    return default_spec


def _probe_task(net: Module, spec: InputSpec, task: str | None, num_known: int) -> tuple[str, int]:
    """The task of a network and the number of its classes, of which so many are known, from a forward pass."""
    if isinstance(net, DetectionScores):
        return DETECTION, net.num_classes
    name = spec.network
    with torch.no_grad():
        output = recognize(net, probe(name, net, spec, net), spec.shape, num_known)
    if isinstance(output, Candidates):
        return DETECTION, output.logits.shape[1]
    if task == DETECTION:
        raise ConfigurationError(f"{name} is for detection, but does not return boxes: see ebcli.Candidates")
    is_dense = task not in (CLASSIFICATION, VIDEO)
    shape = output_shape(name, output, is_dense=is_dense)
    if task is None:
        task = CLASSIFICATION if len(shape) == 2 else SEGMENTATION
    return task, shape[1]


def _fit_input(
    source: ModelSource,
    net: Module,
    settings: Preprocessing,
    default_spec: InputSpec,
    of_detector: bool = False,
) -> InputSpec:
    """The network's own preprocessing with other settings; whole images only if the network takes any size."""
    if of_detector and settings.fit == WHOLE:
        settings = replace(
            settings, fit=None
        )  # lest objects be larger than those that the network was trained on
    spec = settings.apply(default_spec)
    if spec.fit != WHOLE:
        return spec
    stride = max((convolution.stride[0] for convolution in modules_of(net, nn.Conv2d)), default=1)
    if stride & (stride - 1):  # patches of 14 pixels, for example
        spec = replace(spec, stride=stride)
    if spec.tiles or source.takes_any_size:
        return spec
    side = min(spec.shape)
    with suppress(EbcliError), torch.no_grad(), evaluating(net):
        if source.takes_any_size is None:
            longer_side = side + side // spec.step * spec.step
            probe(spec.network, net, replace(spec, size=(side, longer_side)), net)
            return spec
    return settings.apply_fixed_size(default_spec)


def _with_weights(source: ModelSource, weights: str, name: str) -> tuple[Module, str, tuple[Path, ...]]:
    """The network, the name of its weights, and the files that define it."""
    label = UNTRAINED if weights.lower() == UNTRAINED else source.published(weights)
    if label is not None:
        net = source.build() if label == UNTRAINED else source.pretrained(label)
        return net, label, tuple(map(Path, source.files(label)))
    if is_network_file(weights):
        raise ConfigurationError(f"{weights!r} is a network, not weights of {name}: give it to --model")
    checkpoint = Path(weights)
    if not os.path.isfile(checkpoint):
        valid = ", ".join([*source.weights(), UNTRAINED])
        raise ConfigurationError(f"{weights!r} is neither a file nor weights of {name}: choose {valid}")
    net = source.restored(read_checkpoint(checkpoint), f"{weights} for {name}")
    return net, weights, (*map(Path, source.files(weights)), checkpoint)
