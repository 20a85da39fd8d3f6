"""What others have measured in the pointing game, for comparison.

In per cent, for all questions and for the difficult ones. *Paper* is Zhang et al., ECCV 2016;
*TorchRay* is Fong et al., ICCV 2019, whose table measures both methods anew.
"""

from __future__ import annotations

# data set, network, method
POINTING: dict[tuple[str, str, str], str] = {
    ("VOC 2007 test", "vgg16", "marginal"): "paper 76.9 / 55.1, TorchRay 77.1 / 56.6",
    ("VOC 2007 test", "vgg16", "contrastive"): "paper 80.0 / 66.8, TorchRay 79.9 / 66.5",
    ("VOC 2007 test", "resnet50", "contrastive"): "TorchRay 90.7 / 82.1",
    ("COCO instances_val2014", "vgg16", "marginal"): "paper 39.5 / 32.5",
    ("COCO instances_val2014", "vgg16", "contrastive"): "paper 49.6 / 44.2",
}
