"""Maps of the methods, against closed forms and Captum."""

from functools import partial

import pytest
import torch
from color_net import color_net
from method_maps import method_maps
from torch import nn

import ebcli
from ebcli.errors import LayerError
from ebcli.methods.call import MethodCall, class_priors
from ebcli.methods.chance import CHANCE_METHODS
from ebcli.methods.table import find_method, method_names

torch.manual_seed(0)
INPUTS = torch.rand(1, 3, 12, 16)
CLASSES = torch.tensor([[1, 4]])


def deep_net() -> nn.Module:
    """Each convolution is followed by an in-place ReLU."""
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(6, 8, 3, stride=2, padding=1),
        nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 5),
    ).eval()


ANY_NETWORK = [name for name in method_names() if name != "attention-rollout"]  # which needs attention


@pytest.mark.parametrize("method", [*ANY_NETWORK, *CHANCE_METHODS])
def test_each_method_gives_a_map_for_each_class(method: str) -> None:
    maps = method_maps(method, deep_net(), INPUTS, CLASSES, "3")
    whole = method in ("random", "center")
    assert maps.shape == (2, 12, 16) if whole else (2, 6, 8)
    assert maps.isfinite().all()


@pytest.mark.parametrize("contrastive", [True, False])
def test_excitation_backprop_is_the_packages_own(contrastive: bool) -> None:
    net = deep_net()
    for place, index in enumerate(CLASSES[0].tolist()):
        own = ebcli.excitation_backprop(net, INPUTS, index, layer="1", contrastive=contrastive).maps[0]
        maps = method_maps("contrastive" if contrastive else "marginal", net, INPUTS, CLASSES, "1")
        torch.testing.assert_close(maps[place], own)


def test_gradients_of_a_linear_network_are_its_weights() -> None:
    linear = nn.Linear(3 * 12 * 16, 5)
    net = nn.Sequential(nn.Identity(), nn.Flatten(), linear)
    weights = linear.weight.detach()[CLASSES[0]].reshape(2, 3, 12, 16)
    for layer in (None, "0"):
        torch.testing.assert_close(method_maps("gradient", net, INPUTS, CLASSES, layer), weights.abs().sum(1))
        found = method_maps("gradient-x-input", net, INPUTS, CLASSES, layer)
        torch.testing.assert_close(found, (weights * INPUTS).sum(1))


@pytest.mark.parametrize("layer", ["0", "1", "2"])
def test_gradient_x_input_agrees_with_captum(layer: str) -> None:
    from captum.attr import LayerGradientXActivation  # not before a test needs it

    net = deep_net()
    explainer = LayerGradientXActivation(net, net.get_submodule(layer))
    for place, index in enumerate(CLASSES[0].tolist()):
        expected = explainer.attribute(INPUTS.clone(), target=index).detach().sum(1)[0]
        maps = method_maps("gradient-x-input", deep_net(), INPUTS, CLASSES, layer)
        torch.testing.assert_close(maps[place], expected)


class Arrange(nn.Module):
    """Cells (B, c, h, w) as one of the layouts of layers."""

    def __init__(self, layout: str) -> None:
        super().__init__()
        self.layout = layout
        self.class_token = nn.Parameter(torch.full((1, 1, 8), 0.5))

    def forward(self, cells: torch.Tensor) -> torch.Tensor:
        tokens = cells.flatten(2).transpose(1, 2)
        match self.layout:
            case "channels last":
                return cells.permute(0, 2, 3, 1)
            case "tokens":
                return tokens
            case "tokens with a class token":
                return torch.cat([self.class_token.expand(len(cells), -1, -1), tokens], 1)
            case "tokens first":
                return tokens.transpose(0, 1)
        return cells * 1


class Head(Arrange):
    """Logits of cells in a layout."""

    def __init__(self, layout: str) -> None:
        super().__init__(layout)
        self.linear = nn.Linear(8 * 48, 5)

    def forward(self, arranged: torch.Tensor) -> torch.Tensor:
        match self.layout:
            case "channels last":
                arranged = arranged.permute(0, 3, 1, 2)
            case "tokens":
                arranged = arranged.transpose(1, 2)
            case "tokens with a class token":
                arranged = arranged[:, 1:].transpose(1, 2) + arranged[:, :1].transpose(1, 2)
            case "tokens first":
                arranged = arranged.permute(1, 2, 0)
        logits: torch.Tensor = self.linear(arranged.flatten(1).tanh())
        return logits


@pytest.mark.parametrize("name", ["grad-cam", "layer-cam", "hires-cam"])
@pytest.mark.parametrize(
    "layout", ["channels first", "channels last", "tokens", "tokens with a class token", "tokens first"]
)
@pytest.mark.parametrize("images", [1, 2])
def test_class_activation_maps_by_their_formulas_in_every_layout(name: str, layout: str, images: int) -> None:
    torch.manual_seed(1)
    inputs = torch.rand(images, 3, 12, 16)
    classes = torch.tensor([[1, 4], [0, 3]])[:images]
    below = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.Tanh())
    net = nn.Sequential(below, Arrange(layout), Head(layout)).eval()
    cells = below(inputs).detach().requires_grad_()
    logits = net[1:](cells)
    call = MethodCall(net=net, inputs=inputs, priors=partial(class_priors, classes), layers=["1"])
    (result,) = find_method(name).compute(call)
    for i in range(images):
        for k, index in enumerate(classes[i].tolist()):
            (slopes,) = torch.autograd.grad(logits[i, index], cells, retain_graph=True)
            weights = {
                "grad-cam": slopes.mean((2, 3), keepdim=True),
                "layer-cam": slopes.relu(),
                "hires-cam": slopes,
            }[name]
            expected = (weights * cells).sum(1).relu()[i]
            torch.testing.assert_close(result.maps[i, k], expected)


def test_grad_cam_refuses_layers_without_cells() -> None:
    with pytest.raises(LayerError, match="layer '5' has no spatial dimensions"):
        method_maps("grad-cam", deep_net(), INPUTS, CLASSES, "5")


def test_the_network_is_left_unchanged() -> None:
    net = deep_net()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    for method in ANY_NETWORK:
        method_maps(method, net, INPUTS, CLASSES, "3")
    for name, value in net.state_dict().items():
        assert torch.equal(value, before[name])
    assert not any(module._forward_hooks for module in net.modules())
    assert all(parameter.grad is None for parameter in net.parameters())


def test_the_center_is_brightest_and_random_maps_differ() -> None:
    saliency = method_maps("center", color_net(), torch.zeros(1, 3, 31, 51), torch.tensor([[0, 1]]), None)
    assert torch.equal(saliency[0], saliency[1])
    assert divmod(int(saliency[0].argmax()), 51) == (15, 25)
    assert saliency.min() >= 0
    torch.manual_seed(0)
    one, other = (method_maps("random", color_net(), INPUTS, torch.tensor([[0, 1]]), None) for _ in range(2))
    assert len({one[0, 0, 0].item(), one[1, 0, 0].item(), other[0, 0, 0].item()}) == 3


class PictureAndTable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.of_picture = nn.Linear(3 * 4 * 4, 5)
        self.of_table = nn.Linear(6, 5)

    def forward(self, picture: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.of_picture(picture.flatten(1)) + self.of_table(table)
        return logits


@pytest.mark.parametrize("name", ["gradient-x-input", "lrp"])
def test_a_table_beside_the_picture_has_maps_of_its_own_shape(name: str) -> None:
    net = PictureAndTable()
    picture, table = torch.rand(2, 3, 4, 4), torch.rand(2, 6)
    classes = torch.tensor([[1, 4], [0, 3]])
    call = MethodCall(
        net=net, inputs=(picture, table), priors=partial(class_priors, classes), layers=[None, "input:1"]
    )
    of_picture, of_table = find_method(name).compute(call)
    assert (of_picture.maps.shape, of_table.maps.shape) == ((2, 2, 4, 4), (2, 2, 6))
    if name == "gradient-x-input":
        torch.testing.assert_close(of_table.maps, net.of_table.weight.detach()[classes] * table[:, None])


def test_layers_of_a_wrapped_network_have_either_name() -> None:
    for layer in ("module.3", "3"):
        torch.testing.assert_close(
            method_maps("layer-cam", nn.DataParallel(deep_net()), INPUTS, CLASSES, layer),
            method_maps("layer-cam", deep_net(), INPUTS, CLASSES, "3"),
        )


@pytest.mark.parametrize("name", ["grad-cam", "lrp"])
def test_tokens_that_each_image_sorts_have_no_map(name: str) -> None:
    class Sorted(nn.Module):
        def forward(self, cells: torch.Tensor) -> torch.Tensor:
            return cells.flatten(2).transpose(1, 2).sort(1).values

    net = nn.Sequential(nn.Conv2d(3, 8, 4, 4), Sorted(), nn.Flatten(), nn.Linear(8 * 12, 5))
    with pytest.raises(LayerError, match="layer '1' has no spatial dimensions"):
        method_maps(name, net, INPUTS, CLASSES, "1")
