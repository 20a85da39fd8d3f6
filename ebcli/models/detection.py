"""Torchvision's detectors as dense classifiers, and their detections with the anchors they came from."""

from typing import Any

import torch
from torch import Tensor, nn

from ebcli.errors import ConfigurationError
from ebcli.models.boxes import Candidates, Detection
from ebcli.models.probe import hooked
from ebcli.nouns.box import Box

_PARTS = "cls_logits", "bbox_regression"  # of what the head returns


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

    def forward(self, images: Tensor) -> Tensor:
        _, (logits, _) = self.run(images)
        return logits.reshape(len(images), -1, logits.shape[-1]).mT

    def run(self, images: Tensor, *, cut: bool = False) -> tuple[list[dict[str, Tensor]], list[Tensor]]:
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
        detector, of_head = self._detector, dict[str, Tensor]()
        is_two_stage = hasattr(detector, "roi_heads")

        def check(_module: nn.Module, _inputs: Any, output: Any) -> None:
            if len({len(proposals) for proposals in output[0]}) > 1:
                raise ConfigurationError("the images have different numbers of proposals: pass one image at a time")

        def keep(_module: nn.Module, _inputs: Any, output: Any) -> Any:
            of_head.update(zip(_PARTS, output, strict=True) if is_two_stage else output)
            if cut:
                of_head.update({name: one.detach().requires_grad_() for name, one in of_head.items()})
                torch.set_grad_enabled(True)
            return tuple(of_head.values()) if is_two_stage else of_head

        head = detector.roi_heads.box_predictor if is_two_stage else detector.head
        with hooked([detector.rpn] if is_two_stage else [], check), hooked([head], keep):
            found = detector(list(images))
        return found, [of_head[name] for name in _PARTS]

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
    found = []
    of_images, parts = net.run(images, cut=True)
    for i, of_image in enumerate(of_images):
        is_kept, kept = of_image["scores"] >= score, []
        for box, label, value in zip(*(of_image[name][is_kept] for name in ("boxes", "labels", "scores")), strict=True):
            # a score near 1 has no slope, nor has a box that ends with the image
            slopes = torch.autograd.grad(value + box.sum(), parts, retain_graph=True)
            anchors = sum(slope.abs().amax(-1).reshape(len(images), -1)[i] for slope in slopes)
            kept.append(Detection(int(label), value.item(), Box(*box.tolist()), int(torch.as_tensor(anchors).argmax())))
        found.append(kept)
    return found
