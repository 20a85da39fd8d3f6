"""The sufficiency of each method's maps on the bundled network, and docs/evidence/sufficiency.csv, which has the means.

    pip install -e '.[compare]' --group dev
    python -m benchmarks.sufficiency           # a few minutes on one CPU

Sufficiency is tested as by ``eb-saliency --sufficiency``. The photos are those of ``sample_images`` and the twenty
ImageNet photos in the package ``foolbox``, whole, each explained for its most likely class.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean

import torch
from torch import Tensor

from benchmarks import evidence
from benchmarks.faithfulness import LAST, LAYER, MODEL, photos
from ebcli.datatypes.arrays import FloatArray
from ebcli.datatypes.explanation import Explanation, Sufficiency
from ebcli.files.clips import ClipOptions
from ebcli.files.sources import Source
from ebcli.methods.call import MethodCall, class_priors
from ebcli.methods.chance import CHANCE_METHODS
from ebcli.methods.table import find_method
from ebcli.run.controls import sufficiency_of
from ebcli.run.explainer import Explainer
from ebcli.run.plan import RunPlan
from ebcli.run.plan_parts import MapOptions
from ebcli.run.reading import Reader
from ebcli.run.tasks.task import ImageRequest

CONTROLS = ("shuffled", "center", "gradient")
# class activation maps also at the layer that suits them; the blob and random numbers have none
RIVALS = ("gradient-x-input", "grad-cam")
LAYERS = dict.fromkeys(("contrastive", "marginal", "object", "gradient"), (LAYER,))
LAYERS |= dict.fromkeys(RIVALS, (LAYER, LAST))
CHANCE = ("random", "center")
SAMPLES = Path(__file__).resolve().parents[1] / "sample_images"


def measured(paths: Sequence[Path]) -> dict[tuple[str, str], list[Sufficiency]]:
    """The tests of each method's maps at each of its layers, in the order of the photos."""
    explainer = Explainer(RunPlan.from_values(images=tuple(paths), model=MODEL, layer=(LAYER,)))
    loaded = explainer.loaded
    reader = Reader(loaded.transforms, ClipOptions())
    tests: dict[tuple[str, str], list[Sufficiency]] = {}
    for path in paths:
        image = reader.load(Source(path))
        assert image is not None
        (explanation,) = explainer.explain([image])
        assert isinstance(explanation, Explanation)
        first = explanation.maps[0]
        inputs = loaded.transforms.normalize(image.pixels[None])
        values = values_of(loaded.net, inputs, first.subject.index)
        maps = [replace(first, values=array) for array in values.values()]
        requests = [ImageRequest(explainer.network, MapOptions(), size=image.size)] * len(maps)
        results = sufficiency_of(inputs.expand(len(maps), -1, -1, -1), maps, requests)
        for key, test in zip(values, results, strict=True):
            tests.setdefault(key, []).append(test)
    return tests


def values_of(net: torch.nn.Module, inputs: Tensor, index: int) -> dict[tuple[str, str], FloatArray]:
    """The maps of a class, by method and layer."""
    classes = torch.tensor([[index]])
    call = MethodCall(net=net, inputs=inputs, priors=partial(class_priors, classes), layers=())
    values = {}
    for method, layers in LAYERS.items():
        for result in find_method(method).compute(replace(call, layers=layers)):
            values[method, str(result.layer)] = result.maps[0, 0].detach().numpy()
    torch.manual_seed(0)
    for method in CHANCE:
        (result,) = CHANCE_METHODS[method].compute(call)
        values[method, "-"] = result.maps[0, 0].numpy()
    return values


def main() -> None:
    argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0]).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        directory, _ = photos(Path(folder))
        tests = measured([*sorted(SAMPLES.glob("*.jpg")), *sorted(directory.glob("*.jpg"))])
    rows = []
    for (method, layer), results in tests.items():
        means = {name: fmean(getattr(test, name) for test in results) for name in ("part", *CONTROLS)}
        means["left"] = fmean(test.without / test.score for test in results)
        suffices = sum(test.suffices for test in results)
        rows.append(
            {"network": MODEL, "layer": layer, "method": method}
            | {name: f"{value:.3f}" for name, value in means.items()}
            | {"suffices": suffices, "photos": len(results)}
            | evidence.stamp()
        )
    evidence.write("sufficiency", rows)


if __name__ == "__main__":
    main()
