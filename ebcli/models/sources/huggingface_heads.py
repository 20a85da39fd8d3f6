"""The networks of Hugging Face by task: which head a configuration asks for, and what its output means."""

from types import MethodType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Module

from ebcli.errors import ConfigurationError
from ebcli.models.checkpoint import Tensors
from ebcli.models.classes import Texts
from ebcli.models.detection import Candidates
from ebcli.models.keywords import CLASSIFICATION, DETECTION, SEGMENTATION, VALUE_MAPS, VIDEO
from ebcli.models.sources.similarity import check_lengths, too_long

UNIVERSAL = "AutoModelForUniversalSegmentation"
DETECTORS = "AutoModelForObjectDetection"
WITH_TEXTS = "AutoModelForZeroShotObjectDetection"
DEPTH = "AutoModelForDepthEstimation"
TOWERS = "AutoModel"
WITHOUT_ROWS = (UNIVERSAL, DETECTORS, WITH_TEXTS, DEPTH, TOWERS)  # whose last layer has no row for each class
HEADS = {
    "AutoModelForImageClassification": CLASSIFICATION,
    "AutoModelForSemanticSegmentation": SEGMENTATION,
    UNIVERSAL: SEGMENTATION,
    "AutoModelForVideoClassification": VIDEO,
    DETECTORS: DETECTION,
    WITH_TEXTS: DETECTION,
    DEPTH: VALUE_MAPS,
}


def head_of(library: Any, config: Any) -> str | None:
    """The auto class for a configuration: that of the architecture that it names, else the first that knows it."""
    first: str | None = None
    for head in HEADS:
        types = getattr(library, head)._model_mapping.get(type(config), ())
        if not isinstance(types, tuple):
            types = (types,)
        if {type_.__name__ for type_ in types} & {*(config.architectures or ())}:
            return head
        if types:
            first = first or head
    return first


def has_features(library: Any, config: Any) -> bool:
    """Whether a configuration without a head is that of a network from images to features, such as DINOv3."""
    takes_images = isinstance(getattr(config, "num_channels", None), int)
    return takes_images and type(config) in library.AutoModel._model_mapping


def with_pooled_features(net: Module) -> Module:
    """Make a network without a head return its pooled features (B, D) only."""
    net.register_forward_hook(_features_of)
    return net


def _features_of(net: Module, _args: Any, output: Any) -> Tensor:
    features: Tensor | None = getattr(output, "pooler_output", None)
    if features is None:
        raise ConfigurationError(f"{type(net).__name__} returns no pooled features to compare pictures by")
    return features.flatten(1)


def make_plain(net: Any, head: str) -> Module:
    """Make a network take images (B, 3, H, W), or clips (B, 3, T, H, W), and return its logits only, or the like.

    Its modules keep their names. Networks of other heads stay as they are.
    """
    if head in HEADS and head != WITH_TEXTS:  # whose logits depend on the texts
        hooks = {UNIVERSAL: _class_maps_of, DETECTORS: _candidates_of, DEPTH: _depth_of}
        net.register_forward_hook(hooks.get(head, _logits_of))
    if HEADS.get(head) == VIDEO:
        net.register_forward_pre_hook(lambda _net, clips: (clips[0].transpose(1, 2),))
        if net.config.model_type == "timesformer":
            _put_frames_first(net.timesformer, net.config.num_frames)
    return net


def _logits_of(_net: Module, _args: Any, output: Any) -> Tensor:
    return output.logits


def _depth_of(_net: Module, _args: Any, output: Any) -> Tensor:
    """A map of one value, (B, 1, H, W)."""
    return output.predicted_depth.unsqueeze(1)


def _class_maps_of(_net: Module, _args: Any, output: Any) -> Tensor:
    """Class maps (B, num_classes, H, W): the sum of all queries' class scores, weighted by their masks.

    The masks tell where. What is explained is the class, so the masks are the weights, as in attention.
    """
    # (B, queries, num_classes), without "no object"
    classes = output.class_queries_logits.softmax(-1)[..., :-1]
    return torch.einsum("bqhw,bqc->bchw", output.masks_queries_logits.sigmoid(), classes)


def _candidates_of(net: Any, args: Any, output: Any) -> Candidates:
    """A detector's queries. With a logit more than classes, the last one is that of "no object"."""
    logits = output.logits
    has_no_object = logits.shape[-1] > net.config.num_labels
    return Candidates.of_queries(logits, output.pred_boxes, args[0].shape[-2:], has_no_object=has_no_object)


def _put_frames_first(net: Any, frames: int) -> None:
    """Make TimeSformer's embeddings and blocks return tokens frame by frame, as other networks do.

    They order them place by place, so each block gets them back in that order.
    """

    def reorder(tokens: Tensor, rows: int) -> Tensor:
        grid = tokens[:, 1:].unflatten(1, (-1, rows))
        patches = grid.transpose(1, 2).flatten(1, 2)
        return torch.cat([tokens[:, :1], patches], 1)

    def embed(embeddings: Any, *args: Any) -> Tensor:
        return reorder(type(embeddings).forward(embeddings, *args), frames)

    def mix(block: Any, tokens: Tensor, *args: Any) -> tuple[Any, ...]:
        by_place = reorder(tokens, (tokens.shape[1] - 1) // frames)
        output, *extras = type(block).forward(block, by_place, *args)
        return reorder(output, frames), *extras

    # no hooks, as not all hooks would see what others return
    net.embeddings.forward = MethodType(embed, net.embeddings)
    for block in net.encoder.layer:
        block.forward = MethodType(mix, block)


def with_texts(net: Any, tokenizer: Any, texts: Texts, name: str) -> Module:
    """Make a detector take images (B, 3, H, W) only, and return candidates whose classes are texts.

    Args:
        net: a detector of transformers, whose modules keep their names.
        tokenizer: its tokenizer.
        texts: the classes.
        name: the network's name, for messages.

    Raises:
        ConfigurationError: the texts are too long.
    """
    tokenize = _each_text if hasattr(net, "owlvit") else _prompt
    prompt = tokenize(net.config, tokenizer, texts, name)

    def read(_net: Module, args: tuple[Tensor], _kwargs: Any) -> tuple[tuple[()], Tensors]:
        (images,) = args
        inputs = {"pixel_values": images}
        for key, tensor in prompt.inputs.items():
            inputs[key] = tensor.to(images.device).repeat(len(images), 1)
        return (), inputs

    def make_candidates(_net: Module, _args: Any, inputs: Tensors, output: Any) -> Candidates:
        logits = torch.stack([output.logits[..., place].amax(-1) for place in prompt.places], -1)
        size = inputs["pixel_values"].shape[-2:]
        return Candidates.of_queries(logits, output.pred_boxes, size, has_no_object=False)

    net.register_forward_pre_hook(read, with_kwargs=True)
    net.register_forward_hook(make_candidates, with_kwargs=True)
    return net


class Prompt(NamedTuple):
    """Texts as a detector gets them: its inputs by name, and where the logits of each text are."""

    inputs: Tensors
    places: list[slice]


def _each_text(config: Any, tokenizer: Any, texts: Texts, name: str) -> Prompt:
    """The tokens of each text."""
    longest = config.text_config.max_position_embeddings
    check_lengths(tokenizer, texts, longest, name)
    tokens = tokenizer(list(texts), padding="max_length", max_length=longest, return_tensors="pt")
    inputs = {key: tokens[key] for key in ("input_ids", "attention_mask")}
    return Prompt(inputs, [slice(k, k + 1) for k in range(len(texts))])


def _prompt(config: Any, tokenizer: Any, texts: Texts, name: str) -> Prompt:
    """The tokens of one prompt, texts separated by full stops as in training."""
    (stop,) = tokenizer(".", add_special_tokens=False)["input_ids"]
    limit = config.max_text_len
    ids = [tokenizer.cls_token_id]
    places = []
    for text in texts:
        start = len(ids)
        ids += tokenizer(text.lower().strip(" ."), add_special_tokens=False)["input_ids"]
        places.append(slice(start, len(ids)))
        ids.append(stop)
        if len(ids) >= limit:
            raise too_long(text, f"makes more than {limit} tokens, which is all that {name} reads")
    return Prompt({"input_ids": torch.tensor([[*ids, tokenizer.sep_token_id]])}, places)
