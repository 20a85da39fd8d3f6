"""Each method at its best layer, on objects and on mosaics; writes docs/evidence/objects.csv and mosaics.csv.

    pip install -e . --group dev
    python -m benchmarks.best_layers                      # both networks, half an hour on two CPUs
    python -m benchmarks.best_layers --network lite0 --tests objects

The photos are the twenty ImageNet photos in the package ``foolbox`` and three of ``sample_images``. We drew the boxes
of boxes.csv by hand; one photo of the twenty does not show its class, so it has none. Half of the photos, by a hash of
their names, choose the layer of each method, and the other half are measured. Measurements are kept in ``--cache``, so
that an interrupted run can be resumed.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

from benchmarks import evidence
from benchmarks.faithfulness import photos
from benchmarks.networks import LITE1
from ebcli.errors import ImageError
from ebcli.evaluate.benchmark import Benchmark, ModelUnderTest, Row, run_benchmark
from ebcli.evaluate.best_layer import BEST
from ebcli.evaluate.data_sets import LabeledImages, read_boxes
from ebcli.evaluate.localization import Mosaics, classify_images, grid, localize
from ebcli.models import ModelSpec, Preprocessing
from ebcli.models.names import imagenet_classes

HERE = Path(__file__).resolve().parent
BOXES = HERE / "boxes.csv"
SAMPLES = ("chelsea.jpg", "coffee.jpg", "rocket.jpg")
MOSAICS = 24  # half of them choose the layer
CAMS = ("grad-cam", "hires-cam", "layer-cam")
METHODS = ("contrastive", "object", "marginal", *CAMS, "gradient-x-input", "gradient", "center", "random")
NETWORKS = {
    "lite0": ModelSpec("efficientnet_lite0"),
    "lite1": ModelSpec(
        f"{HERE / 'networks.py'}:lite1",
        preprocessing=Preprocessing(**LITE1),
        class_names=tuple(imagenet_classes()),
    ),
}
# of mosaics, whose finest layers would take hours: the ends of the stages with strides of 8 to 32, and the last layer
LAYERS = {
    "lite0": ("features.5", "features.8", "features.11", "features.15", "features.16", "features.17"),
    "lite1": ("_blocks.6", "_blocks.10", "_blocks.14", "_blocks.19", "_blocks.20", "_bn1"),
}
TITLES = {"lite0": "efficientnet_lite0", "lite1": "efficientnet_lite1"}
Tables = dict[str, list[Row]]


class Run:
    """The tests of a network.

    Args:
        network: a key of ``NETWORKS``.
        cache: the directory for photos and measurements.
    """

    def __init__(self, network: str, cache: Path) -> None:
        self._cache = cache / network
        self._labeled, self._labels = photos(cache)
        self._annotated = cache / "annotated"
        shutil.copytree(self._labeled, self._annotated, dirs_exist_ok=True)
        for name in SAMPLES:
            shutil.copy(HERE.parent / "sample_images" / name, self._annotated)
        self._network = network

    def objects(self) -> list[Row]:
        """The table of objects and their boxes, each method at the best one of all blocks."""
        model = ModelUnderTest(NETWORKS[self._network], [BEST], METHODS, "cpu")
        boxes = read_boxes(BOXES)
        assert boxes.files is not None
        images = _images(model, self._annotated, None)
        images.keys = [key for key in images.keys if key in boxes.files]
        return self._table(localize(model, images, BOXES, boxes, None, (1.0,)))

    def mosaics(self) -> list[Row]:
        """The table of mosaics of two by two photos, each method at the best one of some layers."""
        layers = [BEST, *LAYERS[self._network]]
        model = ModelUnderTest(NETWORKS[self._network], layers, METHODS, "cpu")
        images = _images(model, self._labeled, self._labels)
        classified = self._rows(classify_images(model, images))
        return self._table(grid(Mosaics(model, images, classified, MOSAICS)))

    def _rows(self, test: Benchmark) -> list[Row]:
        return run_benchmark(test, self._cache, _refuse)

    def _table(self, test: Benchmark) -> list[Row]:
        return test.summarize(self._rows(test))


def _images(model: ModelUnderTest, folder: Path, labels: Path | None) -> LabeledImages:
    return LabeledImages(folder, labels, model.loaded.categories, model.num_classes)


def _refuse(unit: str, error: ImageError) -> None:
    raise RuntimeError(f"{unit}: {error}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir(), "best_layers"))
    parser.add_argument("--network", choices=[*NETWORKS], action="append")
    parser.add_argument("--tests", choices=["objects", "mosaics"], action="append")
    options = parser.parse_args()
    for network in options.network or NETWORKS:
        run = Run(network, options.cache)
        for test in options.tests or ("objects", "mosaics"):
            rows = evidence.figures(TITLES[network], getattr(run, test)())
            evidence.update(test, rows, ["network"])


if __name__ == "__main__":
    main()
