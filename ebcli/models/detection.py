"""Detectors: their candidates and detections, and torchvision's as dense classifiers."""

import math
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Module

from ebcli.datatypes.explanation import Box
from ebcli.errors import ConfigurationError
from ebcli.heads import single_tensor
from ebcli.layouts import Shape
from ebcli.models.checkpoint import Tensors
from ebcli.models.running import hook_modules

_PARTS = "cls_logits", "bbox_regression"  # of what the head of torchvision's detectors returns
# of two boxes, intersection over union, at which detectors of the YOLO kind drop the worse one
_OVERLAP = 0.7
# of the grids of cells of detectors of the YOLO kind, in pixels; single grids would be the tokens of transformers
_STRIDES = (4, 8), (8, 16), (16, 32), (4, 8, 16), (8, 16, 32), (4, 8, 16, 32), (8, 16, 32, 64)


@dataclass(frozen=True)
class Detection:
    """An object that a detector found.

    Attributes:
        label: class index.
        score: 0 to 1.
        box: left, top, right and bottom, in pixels of the image.
        anchor: index of the anchor, location, proposal or query that it came from, in the output of the network.

    Examples:
        >>> import ebcli
        >>> found = ebcli.Detection(label=1, score=0.9, box=(10.0, 20.0, 50.0, 80.0), anchor=1234)
        >>> left, top, right, bottom = found.box
        >>> right - left, bottom - top
        (40.0, 60.0)
    """

    label: int
    score: float
    box: Box
    anchor: int


class Candidates(NamedTuple):
    """The candidates of a detector in preprocessed images (B, C, H, W). A network that returns them is a detector.

    Attributes:
        logits: (B, num_classes, candidates), from which maps start: best before the softmax or sigmoid.
        boxes: (B, candidates, 4): left, top, right and bottom in pixels of the network's input.
        scores: (B, num_classes, candidates), from 0 to 1, which choose the detections.
        overlap: non-maximum suppression drops the worse of two candidates of a class whose boxes overlap by more
            (intersection over union); None where candidates are objects, as the queries of DETR.

    Examples:
        >>> import ebcli, torch
        >>> boxes = torch.tensor([[[10.0, 20, 50, 80], [11, 20, 50, 80], [0, 0, 9, 9]]])
        >>> logits = torch.tensor([[[2.0, 1.0, -3.0], [-2.0, -1.0, -3.0]]])
        >>> found = ebcli.Candidates(logits, boxes, logits.sigmoid(), overlap=0.7)
        >>> [(one.label, one.anchor) for one in found.detections(score=0.5)[0]]
        [(0, 0)]
    """

    logits: Tensor
    boxes: Tensor
    scores: Tensor
    overlap: float | None = None

    @classmethod
    def of_queries(cls, logits: Tensor, boxes: Tensor, size: Shape, *, has_no_object: bool) -> "Candidates":
        """Those of the DETR kind.

        Args:
            logits: (B, queries, num_classes), or one more if the last class is "no object".
            boxes: (B, queries, 4): center x and y, width and height, as shares of the input.
            size: the input's height and width.
            has_no_object: scores are a softmax with "no object"; else a sigmoid for each class.
        """
        values = logits.detach()
        scores = values.softmax(-1)[..., :-1] if has_no_object else values.sigmoid()
        height, width = size
        corners = _corners(boxes.detach()) * boxes.new_tensor([width, height, width, height])
        return cls(logits.mT[:, : scores.shape[-1]], corners, scores.mT)

    def detections(self, score: float) -> list[list[Detection]]:
        """The detections of each image that score at least this, best first; a candidate has its best class."""
        results = []
        for boxes, scores in zip(self.boxes.float(), self.scores.float(), strict=True):
            best, labels = scores.max(0)
            anchors = (best >= score).nonzero()[:, 0]
            anchors = anchors[best[anchors].argsort(descending=True, stable=True)]
            if self.overlap is not None:
                from torchvision.ops import batched_nms  # which takes a second to import

                anchors = anchors[batched_nms(boxes[anchors], best[anchors], labels[anchors], self.overlap)]
            columns = [column[anchors].tolist() for column in (labels, best, boxes)]
            objects = []
            for label, value, box, anchor in zip(*columns, anchors.tolist(), strict=True):
                objects.append(Detection(label, value, Box(*box), anchor))
            results.append(objects)
        return results


@dataclass(frozen=True)
class YoloOutput:
    """How to read the tensor that exported networks of the YOLO kind return; a forward hook of such a network.

    It is (B, rows, candidates): center x and y, width and height in pixels of the input, the objectness if there is
    one, the classes' scores after the sigmoid, and perhaps values for masks or keypoints.

    Attributes:
        num_classes: the number of classes.
        has_objectness: whether there is one, by which scores are multiplied; known from three candidates for each cell.
        is_transposed: (B, candidates, rows).
    """

    num_classes: int
    has_objectness: bool
    is_transposed: bool

    @classmethod
    def from_output(cls, output: Any, size: Shape, num_classes: int = 0) -> "YoloOutput | None":
        """How to read a network's output; None if it has not the shape of such an output.

        Args:
            output: what the network returned; its first tensor counts.
            size: height and width of the input in pixels.
            num_classes: the number of classes; 0 if it is unknown, so that all rows count.
        """
        shape = single_tensor(output, "the output").shape[1:]
        if len(shape) != 2:
            return None
        counts = _cell_counts(size)
        for is_transposed in (False, True):
            rows, candidates = shape[::-1] if is_transposed else shape
            has_objectness = candidates not in counts
            if has_objectness and candidates / 3 not in counts:
                continue
            num_columns = rows - 4 - has_objectness
            if num_columns >= max(1, num_classes):
                return cls(num_classes or num_columns, has_objectness, is_transposed)
        return None

    def __call__(self, _net: Module, _inputs: Any, output: Any) -> Candidates:
        raw = single_tensor(output, "the output")
        if self.is_transposed:
            raw = raw.mT
        values = raw.detach()
        logits = raw[:, 4 + self.has_objectness :][:, : self.num_classes]
        scores = logits.detach()
        if self.has_objectness:
            scores = scores * values[:, 4:5]
            if self.num_classes == 1:  # such networks learn the objectness only
                logits = raw[:, 4:5]
        return Candidates(logits, _corners(values[:, :4].mT), scores, _OVERLAP)


def recognize(net: Module, output: Any, size: Shape, num_classes: int = 0) -> Any:
    """The output of a network, as candidates if it is a detector of the YOLO kind, which then returns them.

    Args:
        net: the network.
        output: what it returned for images (1, C, H, W).
        size, num_classes: see ``YoloOutput.of``.
    """
    if isinstance(output, Candidates):
        return output
    reading = YoloOutput.from_output(output, size, num_classes)
    if reading is None:
        return output
    net.register_forward_hook(reading)
    return reading(net, (), output)


def _corners(boxes: Tensor) -> Tensor:
    """Boxes (..., 4) with left, top, right and bottom from those with center x and y, width and height."""
    center, size = boxes.split(2, -1)
    return torch.cat([center - size / 2, center + size / 2], -1)


def _cell_counts(size: Shape) -> set[int]:
    """The possible numbers of cells of all grids together."""
    height, width = size[-2:]

    def cells(stride: int) -> int:
        return math.ceil(height / stride) * math.ceil(width / stride)

    return {sum(map(cells, strides)) for strides in _STRIDES}


class DetectionScores(Module):
    """A detector of torchvision as a dense classifier: images (B, 3, H, W) to class logits (B, num_classes, anchors).

    The logits are those of every anchor (RetinaNet, SSD), location (FCOS) or proposal (Faster, Mask and Keypoint
    R-CNN) before non-maximum suppression. The modules have the same names as in the detector, which always runs in
    evaluation mode and does its own resizing and padding.

    Args:
        detector: a network of ``torchvision.models.detection``, or one with the same parts.

    Raises:
        ConfigurationError: it lacks these parts.

    Examples:
        >>> import ebcli, torch
        >>> from torchvision.models.detection import ssdlite320_mobilenet_v3_large
        >>> network = ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, detections_per_img=5)
        >>> net = ebcli.DetectionScores(network)
        >>> image = torch.rand(1, 3, 240, 320)
        >>> net(image).shape
        torch.Size([1, 91, 3234])
        >>> found = ebcli.detections(net, image, score=0.0)[0][0]
        >>> ebcli.excitation_backprop(net, image, found.label, "backbone.features.0", where=(found.anchor,)).maps.shape
        torch.Size([1, 20, 20])
    """

    _detector: Any

    def __init__(self, detector: Module) -> None:
        super().__init__()
        if not is_detector(detector):
            raise ConfigurationError(
                f"{type(detector).__name__} is not a detector: it needs the parts transform and backbone, "
                "and head or roi_heads, as in torchvision.models.detection"
            )
        # not set as a module, lest the names of its parts get a prefix
        vars(self)["_detector"] = detector.eval()
        for name, module in detector.named_children():
            self.add_module(name, module)

    @property
    def num_classes(self) -> int:
        """The number of classes, with the background if the detector has one."""
        if hasattr(self._detector, "roi_heads"):
            return int(self._detector.roi_heads.box_predictor.cls_score.out_features)
        head = self._detector.head.classification_head
        return int(getattr(head, "num_columns", None) or head.num_classes)

    def forward(self, images: Tensor) -> Tensor:
        _, (logits, _) = self.run(images)
        return logits.reshape(len(images), -1, logits.shape[-1]).mT

    def run(self, images: Tensor, *, cut: bool = False) -> tuple[list[Tensors], list[Tensor]]:
        """Run the detector on images (B, 3, H, W) with values from 0 to 1.

        Args:
            images: the images.
            cut: let the detections depend on what the head returns, and that on nothing, for autograd.

        Returns:
            The detections of each image, as the detector returns them; and what its head returns, the logits
            (B, anchors, num_classes) and the box regression, or (B * anchors, ...) of each.

        Raises:
            ConfigurationError: images of a batch have different numbers of proposals.
        """
        detector = self._detector
        parts: Tensors = {}
        is_two_stage = hasattr(detector, "roi_heads")

        def check(_module: Module, _inputs: Any, output: Any) -> None:
            if len({len(proposals) for proposals in output[0]}) > 1:
                raise ConfigurationError(
                    "the images have different numbers of proposals: pass one image at a time"
                )

        def keep(_module: Module, _inputs: Any, output: Any) -> Any:
            if is_two_stage:
                output = dict(zip(_PARTS, output, strict=True))
            parts.update(output)
            if cut:
                for name, tensor in output.items():
                    parts[name] = tensor.detach().requires_grad_()
                torch.set_grad_enabled(True)
            if is_two_stage:
                return tuple(parts.values())
            return parts

        with ExitStack() as hooks:
            if is_two_stage:
                hooks.enter_context(hook_modules([detector.rpn], check))
                hooks.enter_context(hook_modules([detector.roi_heads.box_predictor], keep))
            else:
                hooks.enter_context(hook_modules([detector.head], keep))
            results = detector(list(images))
        return results, [parts[name] for name in _PARTS]

    def extent(self, height: int, width: int) -> tuple[float, float]:
        """The height and width, in pixels of an image of this size, of what its maps cover: the image and its padding.

        Detectors pad at the bottom and at the right.
        """
        (inner_height, inner_width), (outer_height, outer_width) = self.sizes(height, width)
        return height * outer_height / inner_height, width * outer_width / inner_width

    def sizes(self, height: int, width: int) -> tuple[Shape, Shape]:
        """Height and width of an image of this size after resizing, and after padding."""
        batch, _ = self._detector.transform([torch.zeros(3, height, width, device="meta")])
        return batch.image_sizes[0], tuple(batch.tensors.shape[-2:])


def is_detector(net: Module) -> bool:
    """Whether a network has the parts of torchvision's detectors."""
    if not (hasattr(net, "transform") and hasattr(net, "backbone")):
        return False
    if hasattr(net, "roi_heads"):
        return hasattr(net, "rpn") and hasattr(getattr(net.roi_heads, "box_predictor", None), "cls_score")
    return hasattr(net, "anchor_generator") and hasattr(getattr(net, "head", None), "classification_head")


@torch.no_grad()
def detections(net: Module, images: Tensor, score: float = 0.5) -> list[list[Detection]]:
    """The objects that a detector finds, best first, each with the anchor that its score was computed at.

    The anchor of a detection of torchvision's detectors is the one on whose logits and offsets its score and its box
    depend.

    Args:
        net: the detector: `DetectionScores`, or a network that returns `Candidates`.
        images: (B, 3, H, W), values from 0 to 1, for `DetectionScores`; else what the network takes.
        score: only detections that score at least this.

    Raises:
        ConfigurationError: the network is no detector, or images of a batch have different numbers of proposals.

    Examples:
        >>> import ebcli, torch
        >>> from torchvision.models.detection import ssdlite320_mobilenet_v3_large
        >>> network = ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, detections_per_img=5)
        >>> (found,) = ebcli.detections(ebcli.DetectionScores(network), torch.rand(1, 3, 240, 320), score=0.0)
        >>> all(one.score >= two.score for one, two in zip(found, found[1:]))
        True
    """
    if not isinstance(net, DetectionScores):
        candidates = net(images)
        if not isinstance(candidates, Candidates):
            problem = f"{type(net).__name__} is not a detector"
            raise ConfigurationError(f"{problem}: it must return ebcli.Candidates")
        return candidates.detections(score)
    outputs, parts = net.run(images, cut=True)

    def find_anchor(image: int, value: Tensor) -> int:
        slopes = torch.autograd.grad(value, parts, retain_graph=True)
        magnitudes = [slope.abs().amax(-1).reshape(len(images), -1) for slope in slopes]
        return int(torch.stack(magnitudes).sum(0)[image].argmax())

    results = []
    for image, output in enumerate(outputs):
        objects = []
        for box, label, value in zip(output["boxes"], output["labels"], output["scores"], strict=True):
            if value >= score:
                # a score near 1 has no slope, nor has a box that ends with the image
                anchor = find_anchor(image, value + box.sum())
                objects.append(Detection(int(label), value.item(), Box(*box.tolist()), anchor))
        results.append(objects)
    return results
