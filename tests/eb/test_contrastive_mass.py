"""The mass of a contrastive map takes another backward pass, so it is computed where it is asked for."""

import pytest
import torch
from torch import nn

import ebcli


@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize("contrast", [{"contrastive": True}, {"against": 2}], ids=str)
def test_the_mass_of_contrastive_maps_is_computed_where_it_is_asked_for(contrast, joint):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.GELU(), nn.Flatten(), nn.Linear(64, 5)).double()
    x = torch.randn(2, 3, 6, 6, dtype=torch.float64)
    marginal = ebcli.excitation_backprop(net, x, [[0, 1]] * 2, joint=joint)
    for layers in (None, ["0", None]):
        plain, tracked = (
            ebcli.excitation_backprop(
                net, x, [[0, 1]] * 2, layers, joint=joint, track_lost_mass=tracks, **contrast
            )
            for tracks in (False, True)
        )
        plain, tracked = (one if layers is None else one[-1] for one in (plain, tracked))
        assert plain.mass is None
        assert repr(plain)
        torch.testing.assert_close(plain.relevance, tracked.relevance)
        torch.testing.assert_close(tracked.mass, marginal.mass)
