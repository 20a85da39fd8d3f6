"""The sufficiency of each method's maps on the bundled network, and docs/evidence/sufficiency.csv, which has the means.

    pip install -e '.[compare]' --group dev
    python benchmarks/sufficiency.py           # a few minutes on one CPU

Sufficiency is tested as by ``eb-saliency --sufficiency``. The photos are those of ``sample_images`` and the twenty
ImageNet photos in the package ``foolbox``, whole, each explained for its most likely class.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import evidence
import torch
from ebcli.models.methods import IMPLEMENTED
from faithfulness import LAYER, MODEL, photos

from ebcli.datatypes.explanation import Explanation, Sufficiency
from ebcli.files.clips import ClipOptions
from ebcli.files.sources import Source
from ebcli.models.keywords import METHODS
from ebcli.run.controls import sufficiency_of
from ebcli.run.explainer import Explainer
from ebcli.run.plan import RunPlan
from ebcli.run.plan_parts import MapOptions
from ebcli.run.reading import Reader
from ebcli.run.tasks.task import ImageRequest

CONTROLS = ("shuffled", "center", "gradient")
SAMPLES = Path(__file__).resolve().parents[1] / "sample_images"


def measured(paths: Sequence[Path]) -> dict[str, list[Sufficiency]]:
    """The tests of each method's maps, in the order of the photos."""
    explainer = Explainer(RunPlan.from_values(images=tuple(paths), model=MODEL, layer=(LAYER,)))
    loaded = explainer.loaded
    reader = Reader(loaded.transforms, ClipOptions())
    found: dict[str, list[Sufficiency]] = {method: [] for method in METHODS}
    for path in paths:
        image = reader.load(Source(path))
        assert image is not None
        (explained,) = explainer.explain([image])
        assert isinstance(explained, Explanation)
        first, inputs = explained.maps[0], loaded.transforms.normalize(image.pixels[None])
        classes = torch.tensor([[first.subject.index]])
        torch.manual_seed(0)
        maps = [
            replace(first, values=IMPLEMENTED[method](loaded.net, inputs, classes, LAYER)[0].detach().numpy())
            for method in METHODS
        ]
        asked = [ImageRequest(explainer.network, MapOptions(), size=image.size)] * len(maps)
        tests = sufficiency_of(inputs.expand(len(maps), -1, -1, -1), maps, asked)
        for method, test in zip(METHODS, tests, strict=True):
            found[method].append(test)
    return found


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        shown, _ = photos(Path(folder))
        found = measured([*sorted(SAMPLES.glob("*.jpg")), *sorted(shown.glob("*.jpg"))])
    rows = []
    for method, tests in found.items():
        means = {name: fmean(getattr(test, name) for test in tests) for name in ("part", *CONTROLS)}
        left = fmean(test.without / test.score for test in tests)
        suffices = sum(test.suffices for test in tests)
        rows.append(
            {"network": MODEL, "layer": LAYER, "method": method}
            | {name: f"{value:.3f}" for name, value in {**means, "left": left}.items()}
            | {"suffices": suffices, "photos": len(tests)}
            | evidence.stamp()
        )
    evidence.write("sufficiency", rows)


if __name__ == "__main__":
    main()
