"""Run the tests of eb-saliency benchmark on the bundled network, and write their files in docs/evidence.

    pip install -e . --group dev
    python -m benchmarks.faithfulness              # all, twenty minutes on two CPUs
    python -m benchmarks.faithfulness --only grid  # one file; can be repeated

The files are naming.csv, grid.csv, perturbation.csv and randomization.csv, and the pictures grid.png,
perturbation.png and randomization.png. The photos are the twenty ImageNet photos in the package ``foolbox``,
labeled by their file names. Measurements are kept in ``--cache``, so that an interrupted run can be resumed.
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import sys
import tempfile
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib import pyplot

from benchmarks import evidence
from ebcli.errors import ImageError
from ebcli.evaluate.benchmark import Benchmark, ModelUnderTest, Row, run_benchmark
from ebcli.evaluate.data_sets import LabeledImages
from ebcli.evaluate.faithfulness import perturbation, sanity
from ebcli.evaluate.localization import Mosaics, classify_images, grid, naming
from ebcli.models import ModelSpec
from ebcli.models.keywords import BASELINES

MODEL = "efficientnet_lite0"
METHODS = ("contrastive", "marginal", "grad-cam", "gradient-x-input")
STRIDES = {"features.3": 4, "features.5": 8, "features.8": 16, "features.11": 16, "features.16": 32}
LAYER = "features.11"  # the default
LAST = "features.17"  # before pooling
COARSE = "features.16"  # the last block, where Grad-CAM tells classes apart better than at the last layer
CELLS = (224, 256)
MOSAICS, STEPS, STOPS = 30, 16, 6
NAMING_MOSAICS = 12  # with maps of 20 classes each
NAMING_LAYERS = [LAYER, COARSE]
NAMING_METHODS = ("contrastive", "marginal", "grad-cam", "random")
COLORS = dict(zip(METHODS, ("#c1272d", "#0000a7", "#008176", "#eecc16"), strict=True))


def labeled_photos() -> dict[Path, int]:
    """The files of the photos, and their classes."""
    spec = importlib.util.find_spec("foolbox")
    if spec is None or not spec.submodule_search_locations:
        sys.exit("the photos are those of the package foolbox: pip install foolbox")
    paths = sorted(Path(spec.submodule_search_locations[0], "data").glob("imagenet_*.jpg"))
    return {path: int(path.stem.rpartition("_")[2]) for path in paths}


def photos(folder: Path) -> tuple[Path, Path]:
    """The directory of photos, and the file of their labels."""
    shown = folder / "photos"
    shown.mkdir(parents=True, exist_ok=True)
    lines = []
    for path, label in labeled_photos().items():
        shutil.copy(path, shown)
        lines.append(f"{path.name},{label}\n")
    labels = folder / "labels.csv"
    labels.write_text("".join(lines), encoding="utf-8")
    return shown, labels


class Run:
    """The tests, with their measurements cached.

    Args:
        cache: the directory for photos and measurements.
    """

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self._shown, self._labels = photos(cache)
        self.at_all_layers = ModelUnderTest(
            ModelSpec(MODEL), list(STRIDES), (*METHODS, "random", "center"), "cpu"
        )
        self.at_default = ModelUnderTest(ModelSpec(MODEL), [LAYER], METHODS, "cpu")
        loaded = self.at_default.loaded
        self.pictures = LabeledImages(
            self._shown, self._labels, loaded.categories, self.at_default.num_classes
        )

    def rows(self, test: Benchmark) -> list[Row]:
        """The rows of a test."""
        return run_benchmark(test, self._cache / "measured", _refuse)

    def classified(self) -> list[Row]:
        """The predictions for the photos."""
        return self.rows(classify_images(self.at_default, self.pictures))

    def num_recognized(self) -> int:
        """The number of photos that the network recognizes, which mosaics are made of."""
        return sum(row["right"] and row["probability"] >= 0.5 for row in self.classified())

    def grid(self, cell: int) -> list[Row]:
        """The table of the grid pointing game with mosaics of 2 x 2 cells of so many pixels."""
        test = grid(Mosaics(self.at_all_layers, self.pictures, self.classified(), MOSAICS, cell=cell))
        return test.summarize(self.rows(test))

    def naming(self) -> list[Row]:
        """The table of the naming game."""
        model = ModelUnderTest(ModelSpec(MODEL), NAMING_LAYERS, NAMING_METHODS, "cpu")
        test = naming(Mosaics(model, self.pictures, self.classified(), NAMING_MOSAICS))
        return test.summarize(self.rows(test))

    def perturbation(self, kind: str) -> tuple[list[Row], list[Row]]:
        """The rows, and the table, of deletion or insertion."""
        test = perturbation(kind, self.at_default, self.pictures, BASELINES, STEPS)  # type: ignore[arg-type]
        rows = self.rows(test)
        return rows, test.summarize(rows)

    def sanity(self) -> list[Row]:
        """The table of the randomized parameters."""
        test = sanity(self.at_default, self.pictures, STOPS)
        return test.summarize(self.rows(test))


def _refuse(unit: str, error: ImageError) -> None:
    raise RuntimeError(f"{unit}: {error}")


def draw_grid(tables: dict[int, list[Row]], path: Path) -> None:
    """Draw scores by layer, one panel per cell size."""
    figure, axes = pyplot.subplots(1, len(tables), figsize=(9, 3.6), sharey=True, layout="constrained")
    for axis, (cell, rows) in zip(axes, tables.items(), strict=True):
        for method, color in COLORS.items():
            scores = [row["score"] for row in rows if row["method"] == method]
            axis.plot(scores, "o-", color=color, label=method)
        axis.axhline(0.25, color="gray", linestyle=":", label="chance")
        axis.set_xticks(
            range(len(STRIDES)), [f"{layer}\nstride {stride}" for layer, stride in STRIDES.items()]
        )
        axis.tick_params(axis="x", labelsize=7)
        axis.set(title=f"2 x 2 photos of {cell} x {cell} pixels", ylim=(0, 1.02))
    axes[0].set_ylabel("share of the map in the right photo")
    axes[0].legend(fontsize=8, loc="center left", bbox_to_anchor=(0, 0.69))
    figure.savefig(path, dpi=110)


def draw_curves(kinds: dict[str, list[Row]], path: Path) -> None:
    """Draw mean curves of deletion and insertion, for each baseline."""
    figure, axes = pyplot.subplots(
        len(kinds), len(BASELINES), figsize=(9, 5.4), sharex=True, sharey=True, layout="constrained"
    )
    x = np.linspace(0, 100, STEPS + 1)
    for line, (kind, rows) in zip(axes, kinds.items(), strict=True):
        for axis, baseline in zip(line, BASELINES, strict=True):
            found = [row for row in rows if row["baseline"] == baseline]
            for method, color in COLORS.items():
                curves = np.array([row["curve"] for row in found if row["method"] == method])
                axis.plot(x, curves.mean(0), color=color, label=method)
            shuffled = np.array([row["shuffled"] for row in found])
            axis.plot(x, shuffled.mean(0), color="gray", linestyle=":", label="shuffled")
            axis.set(title=f"{kind}, {baseline}", ylim=(0, 1))
        line[0].set_ylabel("probability of the class")
    for axis in axes[-1]:
        axis.set_xlabel("pixels exchanged, in %")
    axes[0, -1].legend(fontsize=8)
    figure.savefig(path, dpi=110)


def draw_sanity(rows: list[Row], path: Path) -> None:
    """Draw the similarity to the intact network's maps by number of randomized layers."""
    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
    for axis, key in zip(axes, ("rank correlation", "SSIM"), strict=True):
        for method, color in COLORS.items():
            found = [row for row in rows if row["method"] == method]
            counts, values = zip((0, 1.0), *((row["randomized"], row[key]) for row in found), strict=True)
            axis.plot(counts, values, "o-", color=color, label=method)
        axis.axhline(0, color="gray", linestyle=":")
        axis.set(title=key, xlabel="layers randomized, from the classifier down")
    axes[0].set_ylabel("similarity to the intact network's maps")
    axes[1].legend(fontsize=8)
    figure.savefig(path, dpi=110)


def write_naming(run: Run) -> None:
    """Write naming.csv."""
    more = {"mosaics": NAMING_MOSAICS, "photos": run.num_recognized()}
    evidence.write("naming", evidence.figures(MODEL, run.naming(), **more))


def write_grid(run: Run) -> None:
    """Write grid.csv and its picture."""
    tables = {cell: run.grid(cell) for cell in CELLS}
    draw_grid(tables, evidence.FOLDER / "grid.png")
    rows = [
        {"cell": cell, "stride": STRIDES.get(row["layer"], "")} | row
        for cell in CELLS
        for row in tables[cell]
    ]
    evidence.write("grid", evidence.figures(MODEL, rows, mosaics=MOSAICS))


def write_perturbation(run: Run) -> None:
    """Write perturbation.csv and its picture."""
    kinds = {kind: run.perturbation(kind) for kind in ("deletion", "insertion")}
    draw_curves({kind: rows for kind, (rows, _) in kinds.items()}, evidence.FOLDER / "perturbation.png")
    by_kind = [{"kind": kind} | row for kind, (_, table) in kinds.items() for row in table]
    evidence.write("perturbation", evidence.figures(MODEL, by_kind, steps=STEPS))


def write_randomization(run: Run) -> None:
    """Write randomization.csv and its picture."""
    rows = run.sanity()
    draw_sanity(rows, evidence.FOLDER / "randomization.png")
    evidence.write("randomization", evidence.figures(MODEL, rows))


FILES = {
    "naming": write_naming,
    "grid": write_grid,
    "perturbation": write_perturbation,
    "randomization": write_randomization,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", choices=[*FILES], action="append", help="write this file only")
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir(), "faithfulness"))
    options = parser.parse_args()
    mpl.use("Agg")
    run = Run(options.cache)
    for name in options.only or FILES:
        FILES[name](run)


if __name__ == "__main__":
    main()
