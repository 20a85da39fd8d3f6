"""Shares of evidence, worked by hand."""

import numpy as np
import pytest

from ebcli.datatypes.atlas import Atlas, evidence, leads
from ebcli.datatypes.explanation import Box, Map, Subject

PLACE = Box(0, 0, 40, 40)  # cells of 20 pixels


def of(values, score, name, **known):
    subject = Subject(len(name), name, score)
    return Map(
        subject=subject, layer="l", values=np.array(values, np.float32), mass=1.0, placement=PLACE, **known
    )


def named(found):
    return [(subject.name, round(share, 5)) for subject, share in found]


def test_shares_of_three_classes():
    # the scores to the power of 3/4 are 1, 0.5 and 0.5
    atlas = Atlas.from_maps(
        [
            of([[0.8, -0.4], [0.02, 0]], 1.0, "cup"),
            of([[0.8, 0.8], [0, 0]], 0.5 ** (4 / 3), "tray"),
            of([[0.8, -0.1], [0, 0.02]], 0.5 ** (4 / 3), "spoon"),
        ]
    )
    # at the centers of the cells: 0.8, 0.4 and 0.4; only 0.4 of "tray"; 0.02 and 0.01, which are not clear
    assert named(atlas.classes_at(9.5, 9.5)) == [("cup", 0.5), ("tray", 0.25), ("spoon", 0.25)]
    assert named(atlas.classes_at(29.5, 9.5)) == [("tray", 1.0)]
    assert atlas.classes_at(9.5, 29.5) == atlas.classes_at(29.5, 29.5) == []
    # halfway between two centers: 0.4, 0.4 and 0.2
    assert named(atlas.classes_at(19.5, 9.5)) == [("cup", 0.4), ("tray", 0.4), ("spoon", 0.2)]
    assert atlas.winners(atlas.evidence).tolist() == [[0, 1], [-1, -1]]
    # where two classes have about as much, both are ranked, but none is named
    assert atlas.winners(atlas.sample([20], [10])).tolist() == [[-1]]
    assert leads(np.array([[3.0, 1.0], [1.0, 1.0], [2.0, 0.0]])).tolist() == [[1, 0], [-2, 0], [-1, -1]]
    assert leads(np.array([[3.0, 0.0]])).tolist() == [[3, 0]]


def test_nothing_is_named_where_the_network_does_not_look():
    atlas = Atlas([Subject(0, "a", 1.0)], np.ones((1, 2, 2), np.float32), placement=Box(10, 0, 30, 40))
    assert atlas.classes_at(10, 0) and atlas.classes_at(29, 39)
    assert atlas.classes_at(9, 20) == atlas.classes_at(30, 20) == atlas.classes_at(20, 40) == []


def test_maps_like_noise_are_no_evidence():
    real = of([[0.1, 0], [0, 0]], 0.5, "cat", noise=0.01)
    noise = of([[0, 0], [0, 0.1]], 0.5, "dog", noise=0.09)
    assert Atlas.from_maps([real, noise]).winners(Atlas.from_maps([real, noise]).evidence).tolist() == [
        [0, -1],
        [-1, -1],
    ]
    assert Atlas.from_maps([noise]).classes_at(29, 29) == []


def test_evidence_is_averaged_over_a_square():
    values = np.zeros((18, 20), np.float32)
    values[8, 8] = 9
    found = evidence(values, 1.0)  # 18 / 6 = 3 cells across
    assert np.allclose(found[7:10, 7:10], 1) and found.sum() == pytest.approx(9)
