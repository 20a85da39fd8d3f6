"""Directories of images with class labels, for the tests that need no boxes."""

import os
from collections.abc import Sequence
from pathlib import Path

from ebcli.errors import ConfigurationError
from ebcli.files.images import has_image_suffix
from ebcli.files.sources import find
from ebcli.models.classes import read_labels
from ebcli.models.fingerprint import configuration_hash


class LabeledImages:
    """The images in a directory, searched recursively.

    Args:
        folder: the directory.
        labels: CSV file with two columns, an image's path relative to the directory and its class by index or name;
            images it does not list are skipped. None to use the predicted class of every image.
        categories, num_classes: the network's classes.

    Raises:
        ConfigurationError: there are no images, or the labels do not match them.

    Attributes:
        keys: image paths relative to the directory.
        labels: class of each image; None if unknown.
    """

    def __init__(self, folder: Path, labels: Path | None, categories: Sequence[str] | None, num_classes: int) -> None:
        self.folder = folder
        if not os.path.isdir(folder):
            raise ConfigurationError(f"the directory '{folder}' does not exist")
        found = [source.path for source in find([folder]) if source.span is None and has_image_suffix(source.path)]
        self.keys = [path.relative_to(folder).as_posix() for path in found]
        self.labels: dict[str, int] | None = None
        if labels is not None:
            rows = read_labels(labels, categories, num_classes)
            self.labels = {Path(*parts).as_posix(): row.label for parts, row in rows.items()}
            if unknown := sorted(self.labels.keys() - set(self.keys)):
                raise ConfigurationError(f"'{labels}' lists '{unknown[0]}', which is not an image in '{folder}'")
            self.keys = [key for key in self.keys if key in self.labels]
        if not self.keys:
            raise ConfigurationError(f"there are no images in '{folder}'")

    @property
    def settings(self) -> dict[str, str]:
        """Everything that results depend on."""
        return {"data": str(self.folder.absolute()), "labels": configuration_hash({"labels": self.labels})}

    def path(self, key: str) -> Path:
        """File of an image."""
        return self.folder / key
