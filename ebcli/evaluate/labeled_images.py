"""Directories of photos and what they show, for the tests that need no boxes."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from ebcli.errors import ConfigurationError
from ebcli.files.images import has_image_suffix
from ebcli.files.sources import find
from ebcli.models import resolve_class
from ebcli.models.fingerprint import configuration_hash


class LabeledImages:
    """The images below a directory.

    Args:
        folder: the directory.
        labels: a file with two columns separated by a comma, an image's path below the directory and its class by
            index or name; images that it does not name are left out. None for all images, whose classes are
            what the network thinks.
        categories, num_classes: the network's classes.

    Raises:
        ConfigurationError: there are no images, or the labels do not fit.

    Attributes:
        keys: the images' paths below the directory.
        labels: the classes by image; None if they are unknown.
    """

    def __init__(self, folder: Path, labels: Path | None, categories: Sequence[str] | None, num_classes: int) -> None:
        self.folder = folder
        if not folder.is_dir():
            raise ConfigurationError(f"there is no directory '{folder}'")
        found = [source.path for source in find([folder]) if source.span is None and has_image_suffix(source.path)]
        self.keys = [path.relative_to(folder).as_posix() for path in found]
        self.labels: dict[str, int] | None = None
        if labels is not None:
            self.labels = _read_labels(labels, categories, num_classes)
            if unknown := sorted(self.labels.keys() - set(self.keys)):
                raise ConfigurationError(f"'{labels}' names '{unknown[0]}', which is no image below '{folder}'")
            self.keys = [key for key in self.keys if key in self.labels]
        if not self.keys:
            raise ConfigurationError(f"there are no images below '{folder}'")

    @property
    def settings(self) -> dict[str, str]:
        """What results depend on."""
        return {"data": str(self.folder.absolute()), "labels": configuration_hash({"labels": self.labels})}

    def path(self, key: str) -> Path:
        """An image's file."""
        return self.folder / key


def _read_labels(path: Path, categories: Sequence[str] | None, num_classes: int) -> dict[str, int]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = [row for row in csv.reader(file) if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigurationError(f"the labels '{path}' cannot be read: {error}") from error
    labels = {}
    for row in rows:
        if len(row) != 2:
            raise ConfigurationError(
                f"the labels '{path}' have the line {','.join(row)!r}: give a path, a comma, a class"
            )
        labels[row[0]] = resolve_class(categories, row[1], num_classes)
    return labels
