"""Operations that have other names on a GPU, on the meta device, which has no numbers."""

import pytest
import torch
from torch import nn

from ebcli.eb import layers_on_path

aten = torch.ops.aten
ATTENTION = {
    "flash on a CPU": aten._scaled_dot_product_flash_attention_for_cpu,
    "flash": aten._scaled_dot_product_flash_attention,
    "efficient": lambda q, k, v: aten._scaled_dot_product_efficient_attention(q, k, v, None, False),
    "cuDNN": lambda q, k, v: aten._scaled_dot_product_cudnn_attention(q, k, v, None, False),
    "another": aten._scaled_dot_product_fused_attention_overrideable,
}


class Attention(nn.Module):
    def __init__(self, attend):
        super().__init__()
        self.q, self.k, self.v, self.head = (nn.Linear(8, 8) for _ in range(4))
        self.attend = attend

    def forward(self, x):
        q, k, v = (layer(x)[:, None] for layer in (self.q, self.k, self.v))
        return self.head(self.attend(q, k, v)[0].flatten(1, 2).mean(1))


@pytest.mark.parametrize("kind", ATTENTION)
def test_attention_passes_probability_to_its_values_alone(kind):
    with torch.device("meta"):
        net, x = Attention(ATTENTION[kind]), torch.empty(2, 5, 8)
    assert list(layers_on_path(net, x, ["q", "k", "v", "head"])) == ["v", "head"]


NORMS = {
    "cuDNN": lambda y, *w: aten.cudnn_batch_norm(y, *w, False, 0.1, 1e-5)[0],
    "MIOpen": lambda y, *w: aten.miopen_batch_norm(y, *w, False, 0.1, 1e-5)[0],
    "any": lambda y, *w: aten.native_batch_norm(y, *w, False, 0.1, 1e-5)[0],
    "without an update": lambda y, *w: aten._batch_norm_no_update(y, *w, 0.1, 1e-5)[0],
}


class Normed(nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.conv, self.head, self.norm = nn.Conv2d(3, 4, 3), nn.Linear(4, 2), norm
        self.weights = nn.ParameterList(torch.empty(4) for _ in range(4))

    def forward(self, x):
        return self.head(self.norm(self.conv(x), *self.weights).mean((2, 3)))


@pytest.mark.parametrize("kind", NORMS)
def test_batch_norms_have_a_rule(kind):
    with torch.device("meta"):
        net, x = Normed(NORMS[kind]), torch.empty(2, 3, 6, 6)
    assert list(layers_on_path(net, x, ["conv", "head"])) == ["conv", "head"]
