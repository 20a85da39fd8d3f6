"""Random networks against a slow reference that shares nothing with the engine but PyTorch's forward functions."""

import random

import pytest
import torch
from fuzz import CLASSES, random_network
from slow_joint_reference import SlowJointReference
from slow_reference import SlowReference
from torch.nn import functional as F

import ebcli

TOLERANCE = 1e-8
SEEDS = 60
SLOW_SEEDS, CHUNK = 4000, 100


def check(seed, contrastive, joint):
    """Compare relevance at some layers, mass and lost mass; raises AssertionError."""
    description, net = random_network(seed)
    choose, inputs = random.Random(seed), description.inputs
    plain = net(inputs).detach()  # with gradients: without, multi-head attention has another implementation
    torch.testing.assert_close(plain, description.values[-1], rtol=1e-9, atol=1e-12)
    targets = torch.tensor(
        [[choose.randrange(CLASSES) for _ in range(choose.choice([1, 2]))] for _ in range(len(inputs))][:1]
    )
    targets = (
        targets.expand(len(inputs), -1) if choose.random() < 0.5 else targets.expand(len(inputs), -1).flip(0)
    )
    priors = [F.one_hot(column, CLASSES).double() for column in targets.mT]
    references = [SlowReference(description, prior, contrastive=contrastive) for prior in priors]
    nodes = references[0].below_classifier() if contrastive else references[0].on_path()
    if joint:  # which adds up the elements of an image
        nodes = [i for i in nodes if len(description.values[i]) == len(inputs)]
    chosen = choose.sample(nodes, min(len(nodes), choose.choice([1, 2, 3])))
    chosen = list(dict.fromkeys([0, *chosen] if choose.random() < 0.7 else chosen))
    layers = [f"steps.{i}" if i else None for i in chosen]
    arguments = {"contrastive": contrastive, "track_lost_mass": not contrastive or seed % 2 == 0}
    results = ebcli.excitation_backprop(net, inputs, targets, layers, joint=joint, **arguments)
    if joint:
        references = [tuple(SlowJointReference(description, s * prior) for s in (1, -1)) for prior in priors]
    for i, result in zip(chosen, results, strict=True):
        assert torch.equal(result.logits, plain), "the logits are not the plain network's, to the bit"
        if joint and result.image_axis:
            continue  # the reference takes the first axis for the images', where there are as many tokens
        expected = (
            expected_jointly(references, i, result) if joint else expected_step_by_step(references, i, result)
        )
        error = (result.relevance - expected).abs().max()
        assert error < TOLERANCE, f"relevance at node {i} of nodes {chosen} is wrong by {error:.3g}"
        if not contrastive:
            assert (result.relevance >= 0).all()
            assert joint or abs(result.mass.sum() - expected.sum()) < TOLERANCE, f"mass at node {i}"
    if 0 in chosen and not joint and arguments["track_lost_mass"]:
        check_mass(results[chosen.index(0)], description, targets, references)
    if choose.random() < 0.3:
        ebcli.excitation_backprop(net, inputs, targets, None, not contrastive, joint=not joint)
        again = ebcli.excitation_backprop(net, inputs, targets, layers, joint=joint, **arguments)
        assert all(torch.equal(a.relevance, b.relevance) for a, b in zip(results, again, strict=True)), (
            "again"
        )


def expected_step_by_step(references, i, result):
    expected = torch.stack([reference.P[i] for reference in references], 1)
    if not (result.contrastive and result.special_tokens):
        return expected
    cells = result.layout.tokens
    marginal = torch.stack([reference.marginal().P[i] for reference in references], 1)
    first = 2 if result.image_axis else 0  # of (tokens, K, B, c), the images
    marginal, expected = marginal.transpose(0, first), expected.transpose(0, first)
    return (over_cells(marginal, cells) - over_cells(marginal - expected, cells)).transpose(0, first)


def expected_jointly(references, i, result):
    maps, duals = (torch.stack([pair[k].shares(i)[0] for pair in references], 1) for k in (0, 1))
    if result.contrastive:
        cells = result.layout.tokens if result.special_tokens else range(maps.shape[2])
        return over_cells(maps, cells) - over_cells(duals, cells)
    torch.testing.assert_close(result.mass, maps.flatten(2).sum(2), rtol=0, atol=TOLERANCE)
    constants = torch.stack([reference.shares(i)[1] for reference, _ in references], 1)
    lost = sum(result.lost_mass.values(), torch.zeros_like(result.mass))
    torch.testing.assert_close(lost, constants, rtol=0, atol=TOLERANCE)
    return maps


def over_cells(relevance, cells):
    """Relevance (B, K, ...) over its sum on the cells, which some of the tokens are, if there is any."""
    total = relevance[:, :, list(cells)].flatten(2).sum(2)
    total = total.reshape(*total.shape, *[1] * (relevance.ndim - 2))
    return torch.where(total == 0, 0, relevance / total)


def check_mass(result, description, targets, references):
    """At the input: the marginal mass, and that mass, lost mass and what constants get make 1."""
    if result.contrastive:
        references = [
            SlowReference(description, F.one_hot(column, CLASSES).double()) for column in targets.mT
        ]
    mass = torch.stack([reference.P[0].flatten(1).sum(1) for reference in references], 1)
    torch.testing.assert_close(result.mass, mass, rtol=0, atol=TOLERANCE)
    if result.contrastive:
        return
    lost = sum(result.lost_mass.values(), torch.zeros_like(mass))
    ended = sum(reference.lost + reference.constant for reference in references)
    assert abs(float(lost.sum()) - ended) < TOLERANCE, "lost mass"
    torch.testing.assert_close(result.mass + lost, torch.ones_like(mass), rtol=0, atol=TOLERANCE)


def checked(seed, contrastive, joint):
    try:
        check(seed, contrastive, joint)
    except Exception as error:
        raise AssertionError(f"{error}\nseed {seed}:\n{random_network(seed)[0]}") from error


@pytest.mark.one_in(5)
@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize("contrastive", [False, True])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_network(seed, contrastive, joint):
    checked(seed, contrastive, joint)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(SEEDS, SEEDS + SLOW_SEEDS, CHUNK))
def test_random_networks(first):
    for seed in range(first, first + CHUNK):
        for contrastive in (False, True):
            for joint in (False, True):
                checked(seed, contrastive, joint)
