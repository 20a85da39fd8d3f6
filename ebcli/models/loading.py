"""Loading a network by name, ready to classify images."""

import os
import threading
import warnings
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import Module

from ebcli.datatypes.input_spec import InputSpec
from ebcli.eb.forward import evaluating
from ebcli.errors import ConfigurationError, EbcliError, plural
from ebcli.heads import Head, HeadChoice, head_of, heads_of, keep_head, single_tensor, with_rows
from ebcli.imports import guard_user_code, name_in_errors
from ebcli.layouts import fits, modules_of
from ebcli.models.checkpoint import check_finite, read_checkpoint
from ebcli.models.classes import NamesByHead, NamesOfHeads, check_texts, printable_names, read_class_names
from ebcli.models.detection import Candidates, DetectionScores, is_detector, recognize
from ebcli.models.keywords import (
    BUNDLED,
    CLASSIFICATION,
    DEFAULT,
    DETECTION,
    RAW,
    SCORES,
    SEGMENTATION,
    UNTRAINED,
    VALUE_MAPS,
    VIDEO,
    WHOLE,
)
from ebcli.models.loaded import HeadShape, LoadedModel
from ebcli.models.outputs import Declared, read_outputs
from ebcli.models.running import blank, checked_device, output_shape, probe, with_hooks
from ebcli.models.several_inputs import inputs_of, with_own_inputs
from ebcli.models.sources import is_network_file, refuse_keras, source_of
from ebcli.models.sources.base import ModelSource
from ebcli.models.sources.in_memory import source_given
from ebcli.models.sources.similarity import with_reference_pictures
from ebcli.models.spec import Preprocessing

FilePath = str | os.PathLike[str]

_MAP_AXES = 3  # of maps of values (B, H, W)
_seeding = threading.RLock()  # of the generator that all threads share


def load_model(
    name: Any = BUNDLED,
    weights: FilePath | None = DEFAULT,
    device: str | torch.device | None = None,
    *,
    transform: Any = None,
    class_names: FilePath | NamesOfHeads = None,
    like: FilePath | Sequence[FilePath] = (),
    preprocessing: Preprocessing | None = None,
    scores: str | None = None,
    head: HeadChoice = None,
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

    Of a network that returns several tensors, its heads, in a tuple, a dict or a dataclass, one is explained:

        load_model("nets.py:two_heads", head="color")          # by name; in a tuple by position: head=1

    A network in memory keeps its weights, its device, its mode and its hooks:

        load_model(net, transform=weights.transforms(), class_names=names)
        load_model(transformers.pipeline("image-classification", ...))

    A function that only answers, such as a web service, is explained by occlusion and RISE:

        load_model(function, transform=weights.transforms(), class_names=names)

    Args:
        name: one of ``model_names()``, ``timm/NAME``, ``hf/NAME``, ``clip/NAME``, ``open_clip/NAME``,
            ``FILE.onnx``, ``FILE.pt2``, ``FILE.py:FACTORY`` or ``MODULE:FACTORY``; a network, a model or a pipeline of
            Hugging Face; or a function from images (B, C, H, W) to logits, of any library, which is not looked into.
        weights: ``"DEFAULT"``, the name of one of the model's weights, a checkpoint file (a state dict saved by
            ``torch.save`` or safetensors, with or without the usual wrappers), or ``"none"``. For a factory,
            ``"DEFAULT"`` and ``"none"`` both mean the network as it returns it.
        device: any PyTorch device; None for the CPU, or for the device of a network in memory.
        transform: of a network in memory, what makes its input (C, H, W) of a Pillow image: a preset of torchvision,
            an image processor of Hugging Face, or any function, whose crop is measured. None if that is unknown.
        class_names: class names in the order of the logits, or a file with them; see ``read_class_names``. A mapping
            has the class names of each head. For ``clip/NAME`` and ``open_clip/NAME``, any texts, and for detectors of
            ``hf/NAME`` that read them.
        like: one or several pictures, files, that become the classes.
        preprocessing: settings that replace those of the weights.
        scores: how logits become scores: ``"softmax"``, ``"sigmoid"`` or ``"raw"``; None for the model's own way, which
            is raw for similarities, for regression and for a single output, sigmoid for multi-label models and for
            segmentation with one channel, else softmax. Raw outputs are values, unless the network names its
            classes. Softmax and sigmoid of CLIP's and SigLIP's similarities use the temperature and bias that the model
            was trained with.
        head: the head to explain, by name or position. None for the only one that has a row for each image, or the one
            named ``logits``, ``pred`` or ``out``.

    Raises:
        ConfigurationError: the model, weights, device or head do not exist, the network has several heads and none is
            chosen, the checkpoint, class names or preprocessing do not fit, the weights contain NaN or infinity, a
            picture cannot be read, or a download failed.

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
    pictures = list(map(Path, like))
    load = partial(_load, str(weights), device, class_names, pictures, settings, scores, head)
    if has_name:
        return load(*source_of(name))
    source = source_given(name, preprocessing if transform is None else transform)
    with evaluating(source.network_given):
        return load(source.name, source)


def _load(
    weights: str,
    device: torch.device | None,
    class_names: NamesOfHeads,
    pictures: Sequence[Path],
    settings: Preprocessing,
    scores: str | None,
    head: HeadChoice,
    name: str,
    source: ModelSource,
) -> LoadedModel:
    source.headless = bool(pictures)
    texts = None if isinstance(class_names, Mapping) else class_names
    if head is not None and (pictures or source.takes_texts()):
        raise ConfigurationError(f"{name} compares images by their features, not by a head: drop --head")
    if source.takes_texts() and not pictures:
        check_texts(name, texts)
    with guard_user_code(name), name_in_errors(name), _seeding, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        head = source.choose_head(head)
        net, label, files = _with_weights(source, weights, name)
        net = with_own_inputs(with_hooks(net))
        check_finite(net, f"{label} for {name}")
        own_task = source.task(net)
        task = own_task or (DETECTION if is_detector(net) else None)
        default_spec = _default_spec(source, name, net, label, settings)
        own_names = source.categories(net, label)
        names = own_names if class_names is None else class_names
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
            names = texts or list(map(str, pictures))
            scores = scores or RAW
        elif source.takes_texts() and texts is not None:
            scores = scores or RAW
            net = source.with_texts(net, texts, scores)
        own_scores = None if pictures else source.scores(net)
        all_names = printable_names(names)
        net = net.eval()
        if device is not None:
            net = net.to(device)
        if is_detector(net):
            net = DetectionScores(net)
    num_known = 0 if isinstance(all_names, Mapping) else len(all_names)
    is_raw = (scores or own_scores) == RAW
    output = _probe_output(net, settings.apply(default_spec), task, num_known, head, is_raw)
    if source.heads:
        output = output._replace(head=source.head, heads=source.heads)
    count = output.num_classes
    categories = _names_of(all_names, output.head)
    if class_names is not None:
        _check_names(name, all_names, len(categories), output)
    declared = Declared(
        task=own_task,
        names=categories,
        are_own_names=len(_names_of(printable_names(own_names), output.head)) == count,
        own_scores=own_scores,
        scores=scores,
        are_similarities=bool(pictures) or getattr(net, "with_texts", None) is not None,
    )
    outputs = read_outputs(name, net, blank(net, settings.apply(default_spec)), output.task, count, declared)
    is_detection = output.task == DETECTION
    fit = partial(_fit_input, source, net, default_spec=default_spec, of_detector=is_detection)
    return LoadedModel(
        name,
        net,
        transforms=fit(settings),
        categories=outputs.names,
        weights=label,
        num_classes=outputs.num_classes,
        files=files,
        scores=outputs.scores,
        has_values=outputs.are_values,
        task=outputs.task,
        one_by_one=source.one_by_one or inputs_of(net) is not None,
        preprocessing=settings,
        fit=fit,
        head=output.head,
        heads=output.heads,
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


class NetworkOutput(NamedTuple):
    """What a network returns; for `head` and `heads`, see ``LoadedModel``."""

    task: str
    num_classes: int
    head: str | None = None
    heads: Mapping[str, HeadShape] = {}


def _probe_output(
    net: Module, spec: InputSpec, task: str | None, num_known: int, choice: HeadChoice, is_raw: bool
) -> NetworkOutput:
    """What a network returns, of whose classes so many are known, from a forward pass.

    Of a network with several heads, only one is returned from then on.
    """
    name = spec.network
    has_candidates = isinstance(net, DetectionScores)
    output = None
    if not has_candidates:
        with torch.no_grad():
            output = probe(name, net, spec, net)
        has_candidates = isinstance(output, Candidates)
    if has_candidates and choice is not None:
        raise ConfigurationError(f"{name} is a detector, so it has one head: drop --head")
    if isinstance(net, DetectionScores):
        return NetworkOutput(DETECTION, net.num_classes)
    all_heads = with_rows(heads_of(output))
    head = None
    if choice is not None:
        head = _keep_head(net, output, choice)
        output = head.tensor
    output = recognize(net, output, spec.shape, num_known)
    if isinstance(output, Candidates):
        return NetworkOutput(DETECTION, output.logits.shape[1])
    if task == DETECTION:
        raise ConfigurationError(f"{name} is for detection, but does not return boxes: see ebcli.Candidates")
    if head is None:
        head = _keep_head(net, output, choice)
    if head.tensor.ndim == _MAP_AXES and (task == VALUE_MAPS or is_raw):
        head = _as_value_map(net, head, spec)
    is_dense = task not in (CLASSIFICATION, VIDEO)
    shape = output_shape(name, head.tensor, is_dense=is_dense)
    if task is None:
        task = CLASSIFICATION if len(shape) == 2 else SEGMENTATION
    if len(all_heads) < 2:
        return NetworkOutput(task, shape[1])
    shapes = {head_name: tuple(a.shape[1:]) for head_name, a in all_heads.items()}
    return NetworkOutput(task, shape[1], head.name, shapes)


def _as_value_map(net: Module, head: Head, spec: InputSpec) -> Head:
    """A map of values (B, H, W) as a head (B, 1, H, W), which the network then returns.

    Raises:
        ConfigurationError: its sides are not those of the image, or of all its cells.
    """
    shape = tuple(head.tensor.shape[1:])
    if not fits(shape, spec.shape):
        size = " x ".join(map(str, spec.shape))
        problem = f"{spec.network} returns a tensor (B, {shape[0]}, {shape[1]}) for images of {size} pixels"
        raise ConfigurationError(f"{problem}, which is no map of values (B, H, W): return (B, outputs, H, W)")
    net.register_forward_hook(_add_channel)
    return head._replace(tensor=head.tensor.unsqueeze(1))


def _add_channel(_net: Module, _inputs: Any, output: Any) -> Tensor:
    """A forward hook: the map of values (B, H, W) as one of several, (B, 1, H, W)."""
    return single_tensor(output, "the output").unsqueeze(1)


def _keep_head(net: Module, output: Any, choice: HeadChoice) -> Head:
    """The head that is explained, of what a network returned; the network then returns it alone."""
    head = head_of(output, choice)
    if not isinstance(output, Tensor):
        net.register_forward_hook(partial(keep_head, head.name))
    return head


def _names_of(all_names: NamesByHead, head: str | None) -> tuple[str, ...]:
    """The class names of a head; none if they are unknown."""
    if not isinstance(all_names, Mapping):
        return all_names
    if head is None:
        return ()
    return all_names.get(head, ())


def _check_names(name: str, all_names: Collection[str], count: int, output: NetworkOutput) -> None:
    """Raise ConfigurationError if a user's class names, so many for this head, do not fit the network."""
    owner = name if output.head is None else f"head {output.head!r} of {name}"
    if isinstance(all_names, Mapping):
        unknown = [head for head in all_names if head not in output.heads]
        if unknown:
            heads = ", ".join(output.heads) or "only one head: give a list"
            raise ConfigurationError(f"there are class names for head {unknown[0]!r}, but {name} has {heads}")
        if output.head not in all_names:
            return
    if count != output.num_classes:
        num_outputs = plural(output.num_classes, "output")
        raise ConfigurationError(
            f"there are {plural(count, 'class name')}, but {owner} has {num_outputs}: name each of them"
        )


def _fit_input(
    source: ModelSource,
    net: Module,
    settings: Preprocessing,
    default_spec: InputSpec,
    of_detector: bool = False,
) -> InputSpec:
    """The network's own preprocessing with other settings; whole images only if the network takes any size."""
    if of_detector and settings.fit == WHOLE:
        # lest objects be larger than those that the network was trained on
        settings = replace(settings, fit=None)
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
    refuse_keras(weights)
    if is_network_file(weights):
        raise ConfigurationError(f"{weights!r} is a network, not weights of {name}: give it to --model")
    checkpoint = Path(weights)
    if not os.path.isfile(checkpoint):
        valid = ", ".join([*source.weights(), UNTRAINED])
        raise ConfigurationError(f"{weights!r} is neither a file nor weights of {name}: choose {valid}")
    net = source.restored(read_checkpoint(checkpoint), f"{weights} for {name}")
    return net, weights, (*map(Path, source.files(weights)), checkpoint)
