"""The tests of eb-benchmark on the bundled network, and docs/faithfulness.md as the page of what came out.

    pip install -e '.[test]'
    python benchmarks/faithfulness.py                # 20 minutes on two processors

The photos are the twenty of ImageNet that the package ``foolbox`` brings, whose names tell their classes. What was
measured is kept below ``--cache``, so that a run that was cut off goes on where it was.
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib import pyplot

from ebcli.errors import ImageError
from ebcli.evaluate.benchmark import Benchmark, Row, carry_out, grouped, table
from ebcli.evaluate.grid import grid, survey
from ebcli.evaluate.names import BASELINES
from ebcli.evaluate.perturbation import perturbation
from ebcli.evaluate.pictures import Pictures
from ebcli.evaluate.sanity import sanity
from ebcli.evaluate.subject import Subject

ROOT = Path(__file__).resolve().parents[1]

MODEL = "efficientnet_lite0"
METHODS = ("contrastive", "marginal", "grad-cam", "gradient-x-input")
STRIDES = {"features.3": 4, "features.5": 8, "features.8": 16, "features.11": 16, "features.16": 32}
LAYER = "features.11"  # the default
CELLS = (224, 256)
MOSAICS, STEPS, STOPS = 40, 16, 8
COLOURS = dict(zip(METHODS, ("#c1272d", "#0000a7", "#008176", "#eecc16"), strict=True))


def photos(folder: Path) -> tuple[Path, Path]:
    """The photos, and a file of their labels."""
    spec = importlib.util.find_spec("foolbox")
    assert spec is not None and spec.submodule_search_locations, "pip install foolbox"
    shown = folder / "photos"
    shown.mkdir(parents=True, exist_ok=True)
    lines = []
    for path in sorted(Path(spec.submodule_search_locations[0], "data").glob("imagenet_*.jpg")):
        shutil.copy(path, shown)
        lines.append(f"{path.name},{path.stem.rpartition('_')[2]}\n")
    labels = folder / "labels.csv"
    labels.write_text("".join(lines), encoding="utf-8")
    return shown, labels


class Run:
    """The tests, one after the other.

    Args:
        cache: where photos and measurements are kept.
    """

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self._shown, self._labels = photos(cache)
        self.at_all_layers = Subject(MODEL, "DEFAULT", list(STRIDES), (*METHODS, "random", "centre"), "cpu")
        self.at_one_layer = Subject(MODEL, "DEFAULT", [LAYER], METHODS, "cpu")
        loaded = self.at_one_layer.loaded
        self.pictures = Pictures(self._shown, self._labels, loaded.categories, self.at_one_layer.num_classes)

    def rows(self, test: Benchmark) -> list[Row]:
        """A test's rows."""
        return carry_out(test, self._cache / "measured", _refuse)

    def surveyed(self) -> list[Row]:
        """What the network says about the photos."""
        return self.rows(survey(self.at_one_layer, self.pictures, self.pictures.keys))

    def grid(self, cell: int) -> list[Row]:
        """The grid pointing game's table, for mosaics of 2 x 2 cells of so many pixels."""
        test = grid(self.at_all_layers, self.pictures, self.surveyed(), 2, MOSAICS, 0.5, cell)
        return test.summarise(self.rows(test))

    def perturbation(self, kind: str) -> tuple[list[Row], list[Row]]:
        """The rows, and the table, of deletion or insertion."""
        test = perturbation(kind, self.at_one_layer, self.pictures, self.pictures.keys, BASELINES, STEPS)  # type: ignore[arg-type]
        rows = self.rows(test)
        return rows, test.summarise(rows)

    def sanity(self) -> list[Row]:
        """The table of the randomised parameters."""
        test = sanity(self.at_one_layer, self.pictures, self.pictures.keys, STOPS)
        return test.summarise(self.rows(test))


def _refuse(unit: str, error: ImageError) -> None:
    raise RuntimeError(f"{unit}: {error}")


def by_layer(rows: Sequence[Row], key: str) -> str:
    """The grid's table with a column for each layer."""
    pivoted = []
    for (method,), found in grouped(rows, "method").items():
        values = {row["layer"]: row[key] for row in found}
        row: Row = {"method": method}
        for layer, stride in STRIDES.items():
            row[f"{layer} (stride {stride})"] = values.get(layer, values.get("-"))
        pivoted.append(row)
    return table(pivoted)


def draw_grid(tables: dict[int, list[Row]], path: Path) -> None:
    """Scores by layer, a picture for each size of cells."""
    figure, axes = pyplot.subplots(1, len(tables), figsize=(9, 3.6), sharey=True, layout="constrained")
    for axis, (cell, rows) in zip(axes, tables.items(), strict=True):
        for method, colour in COLOURS.items():
            scores = [row["score"] for row in rows if row["method"] == method]
            axis.plot(scores, "o-", color=colour, label=method)
        axis.axhline(0.25, color="grey", linestyle=":", label="chance")
        axis.set_xticks(range(len(STRIDES)), [f"{layer}\nstride {stride}" for layer, stride in STRIDES.items()])
        axis.tick_params(axis="x", labelsize=7)
        axis.set(title=f"2 x 2 photos of {cell} x {cell} pixels", ylim=(0, 1.02))
    axes[0].set_ylabel("share of the map in the right photo")
    axes[0].legend(fontsize=8, loc="center right", bbox_to_anchor=(1, 0.62))
    figure.savefig(path, dpi=110)


def draw_curves(kinds: dict[str, list[Row]], path: Path) -> None:
    """Mean curves of deletion and insertion, for each baseline."""
    figure, axes = pyplot.subplots(
        len(kinds), len(BASELINES), figsize=(9, 5.4), sharex=True, sharey=True, layout="constrained"
    )
    x = np.linspace(0, 100, STEPS + 1)
    for line, (kind, rows) in zip(axes, kinds.items(), strict=True):
        for axis, baseline in zip(line, BASELINES, strict=True):
            found = [row for row in rows if row["baseline"] == baseline]
            for method, colour in COLOURS.items():
                curves = np.array([row["curve"] for row in found if row["method"] == method])
                axis.plot(x, curves.mean(0), color=colour, label=method)
            shuffled = np.array([row["shuffled"] for row in found])
            axis.plot(x, shuffled.mean(0), color="grey", linestyle=":", label="shuffled")
            axis.set(title=f"{kind}, {baseline}", ylim=(0, 1))
        line[0].set_ylabel("probability of the class")
    for axis in axes[-1]:
        axis.set_xlabel("pixels exchanged, in %")
    axes[0, -1].legend(fontsize=8)
    figure.savefig(path, dpi=110)


def draw_sanity(rows: list[Row], path: Path) -> None:
    """Similarity to the intact network's maps by layers randomised."""
    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
    for axis, key in zip(axes, ("rank correlation", "SSIM"), strict=True):
        for method, colour in COLOURS.items():
            found = [row for row in rows if row["method"] == method]
            counts, values = zip((0, 1.0), *((row["randomised"], row[key]) for row in found), strict=True)
            axis.plot(counts, values, "o-", color=colour, label=method)
        axis.axhline(0, color="grey", linestyle=":")
        axis.set(title=key, xlabel="layers randomised, from the classifier down")
    axes[0].set_ylabel("similarity to the intact network's maps")
    axes[1].legend(fontsize=8)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir(), "faithfulness"))
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "faithfulness.md")
    options = parser.parse_args()
    mpl.use("Agg")
    run = Run(options.cache)
    surveyed = run.surveyed()
    grids = {cell: run.grid(cell) for cell in CELLS}
    kinds = {kind: run.perturbation(kind) for kind in ("deletion", "insertion")}
    forgotten = run.sanity()
    pictures = options.output.with_suffix("")
    pictures.mkdir(exist_ok=True)
    draw_grid(grids, pictures / "grid.png")
    draw_curves({kind: rows for kind, (rows, _) in kinds.items()}, pictures / "curves.png")
    draw_sanity(forgotten, pictures / "sanity.png")
    for name, rows in {
        "surveyed": surveyed,
        **{f"grid {cell}": rows for cell, rows in grids.items()},
        **{kind: rows for kind, (_, rows) in kinds.items()},
        "sanity": forgotten,
    }.items():
        print(name, table(rows), sep="\n")


if __name__ == "__main__":
    main()
