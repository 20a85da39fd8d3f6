"""The naming game: counts worked by hand; for its command, see test_mosaics.py."""

import numpy as np

from ebcli.evaluate.localization import count_named


def test_cells_named_right():
    # two by two cells for each of four images; the maps of the classes 7, 8 and 9
    seven = [[9, 5, 0, 0], [9, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
    eight = [[0, 0, 4, 4], [0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 8, 0]]
    nine = [[0, 0, 0, 0], [0, 0, 0, 0], [0.5, 0, 2, 0], [0, 0, 0, 3]]
    values = np.array([seven, eight, nine], np.float32)
    labels = np.array([[7, 8], [9, 9]])
    # 7 is right at three cells, 8 at two; 9 at three, one of which is below a tenth of the largest; 8 once wrong. The
    # strongest cell of the last image is named 8
    found = count_named(values, np.array([7, 8, 9]), labels)
    assert found == {
        "cells": 16,
        "right": 8,
        "clear": 8,
        "right and clear": 7,
        "images": 4,
        "right images": 3,
    }
    blank = count_named(0 * values, np.array([7, 8, 9]), labels)
    assert (blank["right"], blank["clear"], blank["right images"]) == (0, 0, 0)


def test_a_cell_is_clear_where_a_class_leads():
    values = np.array([[[10, 5], [5, 5]], [[0, 4.5], [3.5, 5]]], np.float32)  # by 10, 0.5, 1.5 and 0
    found = count_named(values, np.array([1, 2]), np.array([[1, 1], [2, 2]]))
    assert (found["clear"], found["right and clear"]) == (2, 1)


def test_an_odd_number_of_cells():
    """The middle one belongs to the image that has its center, or to the second one."""
    found = count_named(np.ones((1, 3, 3), np.float32), np.array([5]), np.array([[5, 6], [6, 6]]))
    assert (found["right"], found["cells"]) == (4, 9)
