"""Of a CNN followed by an LSTM, layers without a map are refused with the name of one that has a map."""

import pytest
import torch
from PIL import Image
from torch import nn
from torchvision.transforms.functional import to_tensor

import ebcli


class Recurrent(nn.Module):
    """Features of each column, read by an LSTM from left to right."""

    def __init__(self) -> None:
        super().__init__()
        self.cnn = nn.Sequential(nn.Conv2d(3, 8, 4, stride=4), nn.ReLU())
        self.unused = nn.Conv2d(3, 8, 1)
        self.lstm = nn.LSTM(8, 6, batch_first=True)
        self.head = nn.Linear(6, 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        states, _ = self.lstm(self.cnn(images).mean((2, 3))[:, None])
        return self.head(states[:, -1])


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (
            "lstm",
            "has no spatial dimensions .*: choose a layer whose output has height and width, such as 'cnn'",
        ),
        ("head", "is not below the classifier, .*: choose an earlier one, such as 'cnn'"),
        ("unused", "was not called during the forward pass: choose another layer, such as 'cnn'"),
    ],
)
def test_a_layer_without_a_map_is_refused_with_one_that_has_a_map(layer: str, message: str) -> None:
    torch.manual_seed(0)
    net = Recurrent().eval()
    image = Image.effect_noise((64, 64), 80).convert("RGB")
    with pytest.raises(ebcli.LayerError, match=f"layer '{layer}' {message}$"):
        ebcli.explain(net, image, layer=layer, transform=to_tensor)
    assert ebcli.explain(net, image, layer="cnn", transform=to_tensor).maps.shape[-2:] == (16, 16)
