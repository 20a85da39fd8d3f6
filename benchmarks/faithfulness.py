"""The tests of eb-benchmark on the bundled network, and docs/faithfulness.md as the page of what came out.

    pip install -e '.[test]'
    python benchmarks/faithfulness.py                # a quarter of an hour on two processors

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
from ebcli.evaluate.published import POINTING
from matplotlib import pyplot

from ebcli.errors import ImageError
from ebcli.evaluate.grid import classify_images, grid
from ebcli.evaluate.labeled_images import LabeledImages
from ebcli.evaluate.model_under_test import ModelUnderTest
from ebcli.evaluate.names import BASELINES
from ebcli.evaluate.perturbation import perturbation
from ebcli.evaluate.randomization import sanity
from ebcli.evaluate.runner import Benchmark, Row, grouped, mean, run_benchmark, table

ROOT = Path(__file__).resolve().parents[1]
PAGE = Path(__file__).with_suffix(".template.md").read_text(encoding="utf-8")

MODEL = "efficientnet_lite0"
METHODS = ("contrastive", "marginal", "grad-cam", "gradient-x-input")
STRIDES = {"features.3": 4, "features.5": 8, "features.8": 16, "features.11": 16, "features.16": 32}
LAYER = "features.11"  # the default
CELLS = (224, 256)
MOSAICS, STEPS, STOPS = 30, 16, 6
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


GRID_TEXT = """\
From stride 4 to 16, the contrastive map has {contrastive} of itself in the right photo, marginal Excitation
Backprop {marginal}, the gradient times the layer's output {product}, and Grad-CAM {cam}: it weighs whole channels
by the mean of their gradients, which says something at the last layers only. Below them it is at chance, where the
contrastive map is as good as anywhere. The marginal map shows what excites the network, whichever class is asked
for.

What the contrastive map at `{layer}` lacks of 1 depends on the photo: its mean is {worst} for the worst of them
({worst_photo}) and {best} for the best ({best_photo}), in photos of 224 × 224 pixels. A few photos
pull the mean down; the median is higher. With photos of 256 × 256 pixels, the mean is a little higher, too."""
CURVES_TEXT = """\
Insertion tells the maps apart as the mosaics do: with what the contrastive map puts first, the class comes much
sooner than with the same cells in random places. Deletion does not. The first quarter of the pixels takes more of
the class away than a quarter in random places (in the mean over baselines {quarter} of the probability is left for
the contrastive map, {quarter_shuffled} for its cells in random places), but over the whole curve, maps in one piece
gain little or nothing, and the scattered ones of the gradient most. A likely reason, which was not tested: the rest
of the photo, in one piece, keeps the class alive, while scattered holes destroy whatever the network could have read.
Then the test says as much about holes as about maps."""
SANITY_TEXT = """\
After the first stop, with {first} of {total} layers randomised, nothing is left of the order that the contrastive map
puts the photo's places in, and as little of the gradient's and of Grad-CAM's. The marginal map keeps much of it, and
some even when all layers are randomised (a rank correlation of {marginal}), perhaps because it follows the activations,
which may mark much the same places of a photo in any network. So a marginal map says less about what the classifier has
learned than the contrastive one. SSIM does not come down to 0 for anybody: maps that are dark in most places agree in
most."""


class Run:
    """The tests, one after the other.

    Args:
        cache: where photos and measurements are kept.
    """

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self._shown, self._labels = photos(cache)
        self.at_all_layers = ModelUnderTest(MODEL, "DEFAULT", list(STRIDES), (*METHODS, "random", "centre"), "cpu")
        self.at_one_layer = ModelUnderTest(MODEL, "DEFAULT", [LAYER], METHODS, "cpu")
        loaded = self.at_one_layer.loaded
        self.pictures = LabeledImages(self._shown, self._labels, loaded.categories, self.at_one_layer.num_classes)

    def rows(self, test: Benchmark) -> list[Row]:
        """A test's rows."""
        return run_benchmark(test, self._cache / "measured", _refuse)

    def surveyed(self) -> list[Row]:
        """What the network says about the photos."""
        return self.rows(classify_images(self.at_one_layer, self.pictures, self.pictures.keys))

    def grid(self, cell: int) -> tuple[list[Row], list[Row]]:
        """The rows, and the table, of the grid pointing game with mosaics of 2 x 2 cells of so many pixels."""
        test = grid(self.at_all_layers, self.pictures, self.surveyed(), 2, MOSAICS, 0.5, cell)
        rows = self.rows(test)
        return rows, test.summarise(rows)

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


def grid_text(rows: Sequence[Row], questions: Sequence[Row], categories: Sequence[str]) -> str:
    """In words, what the mosaics say."""

    def extent(method: str) -> str:
        scores = [row["score"] for row in rows if row["method"] == method and STRIDES[row["layer"]] <= 16]
        return f"{min(scores):.2f} to {max(scores):.2f}"

    asked = [row for row in questions if row["method"] == "contrastive" and row["layer"] == LAYER]
    means = sorted((mean(found, "score") or 0.0, image) for (image,), found in grouped(asked, "image").items())
    (worst, first), *_, (best, last) = means
    worst_photo, best_photo = (categories[int(Path(image).stem.rpartition("_")[2])] for image in (first, last))
    return GRID_TEXT.format(
        contrastive=extent("contrastive"),
        marginal=extent("marginal"),
        product=extent("gradient-x-input"),
        cam=extent("grad-cam"),
        layer=LAYER,
        worst=f"{worst:.2f}",
        worst_photo=worst_photo,
        best=f"{best:.2f}",
        best_photo=best_photo,
    )


def curves_text(rows: Sequence[Row]) -> str:
    """In words, what deletion and insertion say."""
    found = [row for row in rows if row["method"] == "contrastive"]
    quarter, shuffled = (np.mean([row[key][STEPS // 4] for row in found]) for key in ("curve", "shuffled"))
    return CURVES_TEXT.format(quarter=f"{quarter:.2f}", quarter_shuffled=f"{shuffled:.2f}")


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
    axes[0].legend(fontsize=8, loc="center left", bbox_to_anchor=(0, 0.69))
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
    measured = {cell: run.grid(cell) for cell in CELLS}
    grids = {cell: rows for cell, (_, rows) in measured.items()}
    kinds = {kind: run.perturbation(kind) for kind in ("deletion", "insertion")}
    forgotten = run.sanity()
    pictures = options.output.with_suffix("")
    pictures.mkdir(exist_ok=True)
    draw_grid(grids, pictures / "grid.png")
    draw_curves({kind: rows for kind, (rows, _) in kinds.items()}, pictures / "curves.png")
    draw_sanity(forgotten, pictures / "sanity.png")
    sure = sum(row["right"] and row["probability"] >= 0.5 for row in surveyed)
    without_images = [{key: value for key, value in row.items() if key != "images"} for row in forgotten]
    page = PAGE.format(
        photos=len(surveyed),
        mosaics=MOSAICS,
        sure=sure,
        questions=4 * MOSAICS,
        layer=LAYER,
        steps=STEPS,
        grid224=by_layer(grids[224], "score"),
        grid256=by_layer(grids[256], "score"),
        median224=by_layer(grids[224], "median"),
        hits224=by_layer(grids[224], "hits"),
        deletion=table(kinds["deletion"][1]),
        insertion=table(kinds["insertion"][1]),
        sanity=table(without_images),
        published=table(
            [
                dict(zip(("data", "network", "method"), key, strict=True)) | {"all / difficult, in %": found}
                for key, found in POINTING.items()
            ]
        ),
        grid_text=grid_text(grids[224], measured[224][0], run.at_one_layer.loaded.categories or ()),
        curves_text=curves_text(kinds["deletion"][0]),
        sanity_text=SANITY_TEXT.format(
            first=forgotten[0]["randomised"],
            total=forgotten[-1]["randomised"],
            marginal="{:.2f}".format([row for row in forgotten if row["method"] == "marginal"][-1]["rank correlation"]),
        ),
    )
    options.output.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
