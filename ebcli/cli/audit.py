"""The command ``audit``: what the maps of a run rest on, tested by covering it in the photos."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ebcli.cli.console import SOME_FAILED, note, one_line, put
from ebcli.cli.options import OPTIONS
from ebcli.cli.repetition import repeat
from ebcli.cli.settings import as_toml, settings_of
from ebcli.errors import ConfigurationError
from ebcli.imports import import_optional
from ebcli.models.keywords import BUNDLED
from ebcli.models.sources import takes_texts

if TYPE_CHECKING:
    from ebcli.files.records import Record
    from ebcli.gallery.findings import Candidate, Mask

_TESTED = 40  # photos of a finding
_AT_A_TIME = 16  # findings, whose covered photos are on disk together
_CHANGE, _MORE = 0.3, 0.2  # of the tested photos: that change class, and more than with another place covered
_SETTINGS = ("layers", "allow_unsupported", "device", "dtype", "batch_size", "workers", "image_timeout")


@dataclass(frozen=True)
class Finding:
    """What photos of a class rest on, and what happens if it is covered.

    Attributes:
        candidate: the class, the place and the photos.
        tested: of the photos, how many were tested.
        changed: how many of these change class if the place is covered.
        opposite: how many do if the opposite place is covered; None if they overlap.
    """

    candidate: Candidate
    tested: int
    changed: int
    opposite: int | None

    @property
    def holds(self) -> bool:
        """Whether it makes a difference."""
        others = self.opposite or 0
        return self.changed >= _CHANGE * self.tested and self.changed - others >= max(1, _MORE * self.tested)

    @property
    def words(self) -> str:
        """The finding in a sentence."""
        found, wrong = self.candidate, sum(one.is_wrong for one in self.candidate.photos)
        count = len(found.photos)
        tested = "" if self.tested == count else f" of {self.tested} tested"
        others = "" if self.opposite is None else f", and {self.opposite} without the opposite place"
        mistakes = f"; {wrong} of the {count} are wrong predictions" if wrong else ""
        return (
            f"{count} of {found.total} '{found.name}' photos rest on {found.where}; without it {self.changed}{tested} "
            f"change class{others}{mistakes}"
        )


def audit(options: Mapping[str, Any]) -> int:
    """Audit a run as the command's options say, print the findings and the page, and return the exit status."""
    from ebcli.files.naming import AUDIT
    from ebcli.gallery.audit_page import write_audit
    from ebcli.gallery.findings import by_class, candidates, read_boxes, read_seen
    from ebcli.gallery.page import check_page

    cluster = import_optional("sklearn.cluster", "scikit-learn")

    def clusters(features: NDArray[np.float32], count: int) -> NDArray[np.int64]:
        found: NDArray[np.int64] = cluster.KMeans(count, n_init=3, random_state=0).fit_predict(features)
        return found

    directory, settings = options["directory"], settings_of(options["directory"])
    check_page(directory, options["overwrite"], AUDIT)
    inputs = [Path(image) for image in settings.get("images", ())]
    boxes = {} if options["annotations"] is None else read_boxes(options["annotations"])
    classes = by_class(read_seen(directory, inputs, boxes))
    if not classes:
        raise ConfigurationError(
            f"'{directory}' has no raw maps of photos that are there: repeat that run with --raw, and audit it from "
            "the same working directory"
        )
    found = [one for photos in classes.values() for one in candidates(photos, clusters)]
    tested = [
        finding for at in range(0, len(found), _AT_A_TIME) for finding in _tested(found[at:][:_AT_A_TIME], settings)
    ]
    findings = sorted((one for one in tested if one.holds), key=lambda one: -one.changed * len(one.candidate.photos))
    for one in findings:
        put(one_line(one.words))
    put(os.fsencode(write_audit(directory, [(one.words, one.candidate) for one in findings], classes)))
    photos = sum(map(len, classes.values()))
    dropped = f"; {len(tested) - len(findings)} more made no difference when covered" * (len(tested) > len(findings))
    note(f"{photos} photos of {len(classes)} classes: {len(findings)} finding{'s' * (len(findings) != 1)}{dropped}")
    return SOME_FAILED if findings and options["fail_on_findings"] else 0


def _tested(found: Sequence[Candidate], settings: Mapping[str, Any]) -> Iterator[Finding]:
    """The classes of photos with and without their places, by the network of the run."""
    from ebcli.drawing.overlay import shrunk
    from ebcli.files.images import decode
    from ebcli.files.records import read_records

    with TemporaryDirectory(prefix="eb-saliency-") as temporary:
        photos, maps, file = (Path(temporary, name) for name in ("photos", "maps", "settings.toml"))
        photos.mkdir()
        for number, one in enumerate(found):
            for i, (photo, mask) in enumerate(zip(one.photos[:_TESTED], one.masks, strict=False)):
                image = shrunk(decode(photo.path))
                for kind, cells in (("whole", None), ("without", mask), ("opposite", mask[::-1, ::-1])):
                    _covered(image, cells).save(photos / f"{number}-{i}-{kind}.png", compress_level=1)
        file.write_text(as_toml(_of_network(settings)), encoding="utf-8")
        repeat(["--config", str(file), str(photos), "--output", str(maps), "--quiet"])
        classes = {Path(record.input).stem: _best(record) for record in read_records(maps)}
    for number, one in enumerate(found):
        tested = min(len(one.photos), _TESTED)
        changed, opposite = (
            sum(classes.get(f"{number}-{i}-{kind}") != classes.get(f"{number}-{i}-whole") for i in range(tested))
            for kind in ("without", "opposite")
        )
        overlap = any((mask & mask[::-1, ::-1]).any() for mask in one.masks)
        yield Finding(one, tested, changed, None if overlap else opposite)


def _best(record: Record) -> int | None:
    """The class with the highest score; None if nothing was found."""
    scores = {one.index: one.score for one in record.classes if one.score is not None}
    return max(scores, key=scores.__getitem__, default=None)


def _of_network(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that say how the network gets a photo, for its most likely class."""
    kept = [name for name, option in OPTIONS.items() if option.section == "Model" or name in _SETTINGS]
    if settings.get("like") or takes_texts(settings.get("model", BUNDLED)):  # whose classes these are
        kept += ["like", "targets"]
    names = {part.lstrip("-") for name in kept for part in OPTIONS[name].opts}
    return {name: value for name, value in settings.items() if name in names}


def _covered(image: Image.Image, cells: Mask | None) -> Image.Image:
    """A photo with its mean color in some cells."""
    if cells is None:
        return image
    mean = image.resize((1, 1), Image.Resampling.BOX)
    mask = Image.fromarray(cells.astype(np.uint8) * 255).resize(image.size, Image.Resampling.NEAREST)
    return Image.composite(mean.resize(image.size), image, mask)
