"""Random networks against a slow reference that shares nothing with the engine but PyTorch's forward functions."""

import random

import pytest
import torch
from fuzz import CLASSES, random_network
from slow_reference import SlowReference
from torch.nn import functional as F

import ebcli

TOLERANCE = 1e-8
SEEDS = 60
SLOW_SEEDS, CHUNK = 4000, 100


def check(seed, contrastive):
    """Compare relevance at some layers, mass and lost mass; raises AssertionError."""
    description, net = random_network(seed)
    choose, inputs = random.Random(seed), description.inputs
    plain = net(inputs).detach()  # with gradients: without, multi-head attention has another implementation
    torch.testing.assert_close(plain, description.values[-1], rtol=1e-9, atol=1e-12)
    targets = torch.tensor(
        [[choose.randrange(CLASSES) for _ in range(choose.choice([1, 2]))] for _ in range(len(inputs))][:1]
    )
    targets = targets.expand(len(inputs), -1) if choose.random() < 0.5 else targets.expand(len(inputs), -1).flip(0)
    references = [
        SlowReference(description, F.one_hot(column, CLASSES).double(), contrastive=contrastive)
        for column in targets.mT
    ]
    nodes = references[0].below_classifier() if contrastive else references[0].on_path()
    chosen = choose.sample(nodes, min(len(nodes), choose.choice([1, 2, 3])))
    chosen = list(dict.fromkeys([0, *chosen] if choose.random() < 0.7 else chosen))
    layers = [f"steps.{i}" if i else None for i in chosen]
    results = ebcli.excitation_backprop(net, inputs, targets, layers, contrastive, track_lost_mass=not contrastive)
    for i, result in zip(chosen, results, strict=True):
        assert torch.equal(result.logits, plain), "the logits are not the plain network's, to the bit"
        expected = torch.stack([reference.P[i] for reference in references], 1)
        special = special_tokens(result) if contrastive else 0
        if special:
            marginal = torch.stack(
                [SlowReference(description, F.one_hot(column, CLASSES).double()).P[i] for column in targets.mT], 1
            )
            expected = over_cells(marginal, special) - over_cells(marginal - expected, special)
        error = (result.relevance - expected).abs().max()
        assert error < TOLERANCE, f"relevance at node {i} of nodes {chosen} is wrong by {error:.3g}"
        if not contrastive:
            assert (result.relevance >= 0).all()
            assert abs(result.mass.sum() - expected.sum()) < TOLERANCE, f"mass at node {i}"
    if 0 in chosen:
        check_mass(results[chosen.index(0)], description, targets, references)


def special_tokens(result):
    """How many tokens the map leaves out, for a layer (B, tokens, c) of a network that reads images."""
    if len(result.layer_shape) != 3 or len(result.input_shape) != 4:
        return 0
    try:
        return result.layer_shape[1] - result.maps[0, 0].numel()
    except ebcli.LayerError:
        return 0


def over_cells(relevance, special):
    """Relevance (B, K, tokens, c) over its sum on the tokens behind the special ones, if there is any."""
    total = relevance[:, :, special:].sum((2, 3), keepdim=True)
    return torch.where(total == 0, 0, relevance / total)


def check_mass(result, description, targets, references):
    """At the input: the marginal mass, and that mass, lost mass and what constants get make 1."""
    if result.contrastive:
        references = [SlowReference(description, F.one_hot(column, CLASSES).double()) for column in targets.mT]
    mass = torch.stack([reference.P[0].flatten(1).sum(1) for reference in references], 1)
    torch.testing.assert_close(result.mass, mass, rtol=0, atol=TOLERANCE)
    if result.contrastive:
        return
    lost = sum(result.lost_mass.values(), torch.zeros_like(mass))
    ended = sum(reference.lost + reference.constant for reference in references)
    assert abs(float(lost.sum()) - ended) < TOLERANCE, "lost mass"
    torch.testing.assert_close(result.mass + lost, torch.ones_like(mass), rtol=0, atol=TOLERANCE)


def checked(seed, contrastive):
    try:
        check(seed, contrastive)
    except Exception as error:
        raise AssertionError(f"{error}\nseed {seed}:\n{random_network(seed)[0]}") from error


@pytest.mark.parametrize("contrastive", [False, True])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_network(seed, contrastive):
    checked(seed, contrastive)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(SEEDS, SEEDS + SLOW_SEEDS, CHUNK))
def test_random_networks(first):
    for seed in range(first, first + CHUNK):
        for contrastive in (False, True):
            checked(seed, contrastive)
