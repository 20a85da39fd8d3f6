"""What may be explained: the forms of targets and priors, and what is refused."""

import pytest
import torch
from nets import IMAGE, NUM_CLASSES, assert_same, classifier, one_hot
from reference import Reference
from torch import nn

import ebcli

INDICES = {
    "number": 3,
    "numbers": [3, 3],
    "tensor": torch.tensor([3, 3]),
    "int32": torch.tensor([3, 3], dtype=torch.int32),
    "prior": one_hot(3, 3),
    "float32 prior": one_hot(3, 3).float(),
    "function": lambda logits: torch.full((len(logits),), 3),
    "function to a prior": lambda logits: one_hot(3, 3),
}


def test_a_result_is_printed_by_its_shapes_and_masses():
    net, x = classifier()
    result = ebcli.excitation_backprop(net, x, [[1, 2, 3]] * 2, "1")
    first = ", ".join(f"{mass:.3f}" for mass in result.mass.flatten()[:4])
    assert repr(result) == (
        f"ExcitationResult(layer='1', method='marginal', relevance=(2, 3, 9, 4, 4), "
        f"logits=(2, {NUM_CLASSES}), mass=[{first}, ...])"
    )


@pytest.mark.parametrize("form", INDICES)
def test_forms_of_targets(form):
    net, x = classifier()
    result = ebcli.excitation_backprop(net, x, INDICES[form], "1")
    assert_same(result.relevance, Reference(net, x).relevance(one_hot(3, 3), "1"))
    assert result.maps.shape == (2, 4, 4)
    assert result.mass.shape == (2,)
    assert result.layer == "1"
    torch.testing.assert_close(result.maps, result.relevance.sum(1))


def test_several_targets_for_each_image():
    net, x = classifier()
    result = ebcli.excitation_backprop(net, x, lambda logits: logits.topk(3).indices, "1")
    top = net(x).topk(3).indices
    assert result.relevance.shape == (2, 3, 9, 4, 4)
    assert result.maps.shape == (2, 3, 4, 4)
    assert result.mass.shape == (2, 3)
    for k in range(3):
        assert_same(result.relevance[:, k], Reference(net, x).relevance(one_hot(*top[:, k].tolist()), "1"))
    one = ebcli.excitation_backprop(net, x, top[:, :1], "1")
    assert one.maps.shape == (2, 1, 4, 4)
    assert_same(one.maps[:, 0], result.maps[:, 0])


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (NUM_CLASSES, f"class {NUM_CLASSES} does not exist: the network has classes 0 to {NUM_CLASSES - 1}"),
        (-1, "class -1 does not exist"),
        ([[0, 1], [2, 77]], "class 77 does not exist"),
        ([1, 2, 3], r"\(3,\) do not fit 2 images"),
        (torch.zeros(2, 1, 1, dtype=torch.long), r"\(2, 1, 1\) do not fit"),
        (torch.ones(2, NUM_CLASSES + 1), r"prior has shape \(2, 6\).*\(2, 5\)"),
        (torch.eye(NUM_CLASSES)[:2].bool(), "bool"),  # a mask, or class indices 0 and 1? no telling
        (torch.ones(NUM_CLASSES), r"prior has shape \(5,\).*\(2, 5\)"),
        (torch.zeros(2, 0, dtype=torch.long), "no targets"),
        ([["tiger cat"], ["tabby"]], r"categories\.index"),
        ([[1, 2], [3]], "the same number for each image"),
    ],
    ids=[
        "too_high",
        "negative",
        "one_too_high",
        "too_many",
        "too_deep",
        "wide_prior",
        "mask",
        "flat_prior",
        "none",
        "name",
        "ragged",
    ],
)
def test_targets_that_do_not_fit(targets, message):
    net, x = classifier()
    with pytest.raises(ebcli.ConfigurationError, match=message):
        ebcli.excitation_backprop(net, x, targets, "1")


def test_inputs_that_are_no_images():
    net, x = classifier()
    with pytest.raises(ebcli.ConfigurationError, match="batch is empty"):
        ebcli.excitation_backprop(net, x[:0], 0, "1")
    with pytest.raises(ebcli.LayerError, match=r"the input has dtype torch\.uint8"):
        ebcli.excitation_backprop(net, x.byte(), 0)
    with pytest.raises(ebcli.ConfigurationError, match="not a ndarray"):
        ebcli.excitation_backprop(net, x.numpy(), 0)


def test_outputs_that_are_no_logits():
    with pytest.raises(ebcli.ConfigurationError, match=r"\(216,\)"):
        ebcli.excitation_backprop(nn.Flatten(0), torch.rand(IMAGE), 0)
