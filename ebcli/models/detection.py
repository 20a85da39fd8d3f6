"""Torchvision's detectors as dense classifiers, and their detections with the anchors they came from."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ebcli.errors import ConfigurationError
from ebcli.models.boxes import Candidates, Detection
from ebcli.models.probe import hooked
from ebcli.nouns.box import Box

_SAME_SCORE = 1e-4  # a score computed twice, rounded differently


class DetectionScores(nn.Module):
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
        >>> net = ebcli.DetectionScores(ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None))
        >>> image = torch.rand(1, 3, 240, 320)
        >>> net(image).shape
        torch.Size([1, 91, 3234])
        >>> found = ebcli.detections(net, image, score=0.0)[0][0]
        >>> ebcli.excitation_backprop(net, image, found.label, "backbone.features.0", where=(found.anchor,)).maps.shape
        torch.Size([1, 20, 20])
    """

    _detector: Any

    def __init__(self, detector: nn.Module) -> None:
        super().__init__()
        if not is_detector(detector):
            raise ConfigurationError(
                f"{type(detector).__name__} is not a detector: it needs the parts transform and backbone, and head or "
                "roi_heads, as in torchvision.models.detection"
            )
        vars(self)["_detector"] = detector.eval()  # not set as a module, lest the names of its parts get a prefix
        for name, module in detector.named_children():
            self.add_module(name, module)

    @property
    def num_classes(self) -> int:
        """The number of classes, with the background if the detector has one."""
        if hasattr(self._detector, "roi_heads"):
            return int(self._detector.roi_heads.box_predictor.cls_score.out_features)
        head = self._detector.head.classification_head
        return int(getattr(head, "num_columns", None) or head.num_classes)

    @property
    def has_background(self) -> bool:
        """Whether class 0 is the background."""
        return hasattr(self._detector, "roi_heads") or hasattr(self._detector.head.classification_head, "num_columns")

    def forward(self, images: Tensor) -> Tensor:
        return self.run(images).logits

    def run(self, images: Tensor) -> "Predictions":
        """Run the detector on images (B, 3, H, W) with values from 0 to 1.

        Raises:
            ConfigurationError: images of a batch have different numbers of proposals.
        """
        detector, seen = self._detector, dict[nn.Module, Any]()
        is_two_stage = hasattr(detector, "roi_heads")
        anchors = detector.rpn if is_two_stage else detector.anchor_generator
        head = detector.roi_heads.box_predictor if is_two_stage else detector.head
        with hooked((detector.transform, anchors, head), lambda module, _inputs, output: seen.update({module: output})):
            found = detector(list(images))
        of_images, of_head, centerness = seen[anchors], seen[head], None
        if is_two_stage:
            of_images = of_images[0]
            if len({len(of_image) for of_image in of_images}) > 1:
                raise ConfigurationError("the images have different numbers of proposals: pass one image at a time")
            logits, offsets = (values.unflatten(0, (len(images), -1)) for values in of_head)
        else:
            logits, offsets, centerness = map(of_head.get, ("cls_logits", "bbox_regression", "bbox_ctrness"))
        shapes = seen[detector.transform][0].image_sizes
        return Predictions(found, logits.mT, offsets, anchors=of_images, shapes=shapes, centerness=centerness)

    def boxes(self, predictions: "Predictions", i: int, label: int) -> Tensor:
        """The boxes (anchors, 4) that image ``i`` would have if every anchor detected a class, in resized pixels."""
        offsets, anchors = predictions.offsets[i], predictions.anchors[i]
        boxes: Tensor
        if hasattr(self._detector, "roi_heads"):
            boxes = self._detector.roi_heads.box_coder.decode(offsets, [anchors])[:, label]
        elif predictions.centerness is not None:
            boxes = self._detector.box_coder.decode(offsets, anchors)
        else:
            boxes = self._detector.box_coder.decode_single(offsets, anchors)
        height, width = predictions.shapes[i]
        return boxes.clamp(min=0).minimum(boxes.new_tensor([width, height, width, height]))

    def scores(self, predictions: "Predictions", i: int, label: int) -> Tensor:
        """The scores (anchors,) of a class in image ``i``."""
        logits = predictions.logits[i]
        if self.has_background:
            return logits.softmax(0)[label]
        scores = logits[label].sigmoid()
        return scores if predictions.centerness is None else (scores * predictions.centerness[i, :, 0].sigmoid()).sqrt()

    def extent(self, height: int, width: int) -> tuple[float, float]:
        """The height and width, in pixels of an image of this size, of what its maps cover: the image and its padding.

        Detectors pad at the bottom and at the right.
        """
        resized, padded = self.sizes(height, width)
        return height * padded[0] / resized[0], width * padded[1] / resized[1]

    def sizes(self, height: int, width: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """Height and width of an image of this size after resizing, and after padding."""
        found, _ = self._detector.transform([torch.zeros(3, height, width, device="meta")])
        (resized,), padded = found.image_sizes, found.tensors.shape[-2:]
        return resized, (padded[0], padded[1])


class Predictions(NamedTuple):
    """What a detector computed for B images.

    Attributes:
        found: the detections of each image, as the detector returns them.
        logits: (B, num_classes, anchors).
        offsets: the box regression, (B, anchors, 4), or (B, anchors, 4 num_classes) for each class.
        anchors: for each image, (anchors, 4), in pixels of the resized image.
        shapes: each resized image's height and width.
        centerness: FCOS's logits (B, anchors, 1).
    """

    found: list[dict[str, Tensor]]
    logits: Tensor
    offsets: Tensor
    anchors: list[Tensor]
    shapes: list[tuple[int, int]]
    centerness: Tensor | None


def is_detector(net: nn.Module) -> bool:
    """Whether a network has the parts of torchvision's detectors."""
    if not (hasattr(net, "transform") and hasattr(net, "backbone")):
        return False
    if hasattr(net, "roi_heads"):
        return hasattr(net, "rpn") and hasattr(getattr(net.roi_heads, "box_predictor", None), "cls_score")
    return hasattr(net, "anchor_generator") and hasattr(getattr(net, "head", None), "classification_head")


@torch.no_grad()
def detections(net: nn.Module, images: Tensor, score: float = 0.5) -> list[list[Detection]]:
    """The objects that a detector finds, best first, each with the anchor that its score was computed at.

    The anchor of a detector of torchvision is found among all anchors by the score and the box, which the detector's
    own box coder decodes.

    Args:
        net: the detector: `DetectionScores`, or a network that returns `Candidates`.
        images: (B, 3, H, W), values from 0 to 1, for `DetectionScores`; else what the network takes.
        score: only detections that score at least this.

    Raises:
        ConfigurationError: the network is no detector; a detection cannot be traced to an anchor, because the detector
            changes scores or boxes further than torchvision's do; or images of a batch have different numbers of
            proposals.

    Examples:
        >>> import ebcli, torch
        >>> loaded = ebcli.load_model("ssdlite320_mobilenet_v3_large", weights="none")
        >>> (found,) = ebcli.detections(loaded.net, torch.rand(1, 3, 240, 320), score=0.0)
        >>> all(one.score >= two.score for one, two in zip(found, found[1:]))
        True
    """
    if not isinstance(net, DetectionScores):
        candidates = net(images)
        if not isinstance(candidates, Candidates):
            raise ConfigurationError(f"{type(net).__name__} is not a detector: it must return ebcli.Candidates")
        return candidates.detections(score)
    predictions = net.run(images)
    height, width = images.shape[-2:]
    found = []
    for i, of_image in enumerate(predictions.found):
        rows, columns = predictions.shapes[i]
        scale = images.new_tensor([width / columns, height / rows] * 2)
        is_kept, kept = of_image["scores"] >= score, []
        for box, label, value in zip(*(of_image[name][is_kept] for name in ("boxes", "labels", "scores")), strict=True):
            distances = (net.boxes(predictions, i, int(label)) * scale - box).abs().amax(1)
            differs = (net.scores(predictions, i, int(label)) - value).abs() > _SAME_SCORE
            distance, anchor = distances.masked_fill(differs, torch.inf).min(0)
            if not distance < 1:  # pixel
                raise ConfigurationError(
                    f"a detection of class {int(label)} cannot be traced to an anchor: the detector changes its scores "
                    "or boxes in a way of its own; pass where=(anchor,) to excitation_backprop instead"
                )
            kept.append(Detection(int(label), float(value), Box(*box.tolist()), int(anchor)))
        found.append(kept)
    return found
