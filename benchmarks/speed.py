"""Cost of a saliency map in forward passes of the same network on the same batch.

    python -m benchmarks.speed                  # the whole table, some minutes
    python -m benchmarks.speed --only 'vgg16*'  # some rows; can be repeated
    python -m benchmarks.speed --peers          # also zennit, captum and grad-cam, if installed
    python -m benchmarks.speed --csv            # also write docs/evidence/cost.csv: runs of one month show as a range
    python -m benchmarks.speed --check          # two small rows; fails if a ratio is too high, three times in a row

The unit is one plain forward pass in ``torch.inference_mode``. It runs the same network as the map, on the same inputs.
The network is in ``torch.channels_last``, as in the command, and the inputs are in the default layout. Other libraries
get a copy of this network.

Everything runs in one process and alternates, so that load slows all of it alike. A row shows the median and the
interquartile range of the ratios, and their bound: the multiplications of the map over those of a forward pass, counted
with unfused attention. Layers are the networks' defaults, or the pixels. For networks in ONNX files and exported
programs, the unit is the same map of the network that was exported. ``--check`` compares CPU seconds of one thread,
which other load hardly changes.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import json
import platform
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import ebcli

Work = Callable[[], object]
Clock = Callable[[], float]
LAYOUT = torch.channels_last  # of the network; the command computes maps of two-dimensional images in it


@dataclass(frozen=True)
class Row:
    """One row of the table. `goal` is the ratio to reach, `expected` the one that ``--check`` expects.

    `file` is the suffix of a file that the network is exported to, and `file_layer` the layer's name there.
    """

    model: str
    layer: str | None
    contrastive: bool
    batch: int = 8
    classes: int = 1
    side: int = 224
    goal: float | None = None
    expected: float | None = None
    file: str = ""
    file_layer: str = ""

    @property
    def name(self) -> str:
        where = "pixels" if self.layer is None else self.layer
        kind = "contrastive" if self.contrastive else "marginal"
        several = f", {self.classes} classes" if self.classes > 1 else ""
        return f"{self.model}{self.file} {kind} at {where}, batch {self.batch}{several}"


ROWS = (
    Row("vgg16", "features.23", contrastive=True, goal=1.30),
    Row("resnet50", "layer3", contrastive=True, goal=1.6),
    Row("resnet50", "layer3", contrastive=True, batch=1, goal=1.9),
    Row("efficientnet_b0", "features.5", contrastive=True, goal=2.2),
    Row("mobilenet_v3_large", "features.12", contrastive=True, goal=2.2),
    Row("efficientnet_lite0", "features.11", contrastive=True, goal=2.0),
    Row("efficientnet_lite0", "features.11", contrastive=True, batch=1, goal=2.6),
    Row("convnext_tiny", "features.0", contrastive=True, batch=4, goal=3.3),
    Row("vit_b_16", "encoder.dropout", contrastive=True, batch=4, goal=3.5),
    Row("swin_t", "features.0", contrastive=True, batch=4, goal=5.0),
    Row("vgg16", None, contrastive=True, batch=4, goal=3.3),
    Row("vgg16", "features.23", contrastive=True, classes=5, goal=1.9),
    Row("vgg16", "features.23", contrastive=False),
    Row("vgg16", None, contrastive=False, goal=3.3),
    *(
        Row(
            model,
            layer,
            contrastive=True,
            batch=4,
            goal=1.3,
            file=file,
            file_layer=layer if file == ".pt2" else node,
        )
        for model, layer, node in (
            ("resnet50", "layer3", "/layer3/layer3.5/relu_2/Relu"),
            ("vit_b_16", "encoder.dropout", "/encoder/Add"),
            ("convnext_tiny", "features.0", "/features/features.0/features.0.1/Transpose_1"),
        )
        for file in (".onnx", ".pt2")
    ),
)
SLACK = 1.3  # of what is expected, which --check allows
TRIES = 3  # a regression is there each time
CHECKED = (  # medians of several runs
    Row("resnet18", "layer3", contrastive=True, batch=2, expected=2.2),
    Row("efficientnet_lite0", "features.11", contrastive=True, batch=2, expected=2.2),
)


@dataclass(frozen=True)
class Measured:
    """Ratios to the forward pass (median and quartiles), their bound, and the forward pass in seconds.

    The rule is that of this package's maps.
    """

    name: str
    by: str
    rule: str
    median: float
    low: float
    high: float
    bound: float | None
    forward: float


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", metavar="PATTERN", help="rows whose name matches")
    parser.add_argument("--rounds", type=int, default=7, help="timings of each (7)")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads (2)")
    parser.add_argument("--peers", action="store_true", help="also other libraries, if installed")
    parser.add_argument("--csv", action="store_true", help="also write docs/evidence/cost.csv")
    parser.add_argument("--json", action="store_true", help="print one JSON object per row")
    parser.add_argument("--check", action="store_true", help="two small rows only; fail on a regression")
    options = parser.parse_args()
    clock = time.process_time if options.check else time.perf_counter
    torch.set_num_threads(1 if options.check else options.threads)
    rows = [
        r
        for r in (CHECKED if options.check else ROWS)
        if any(fnmatch(r.name, p) for p in options.only or ["*"])
    ]
    failed = []
    if not options.json:
        print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {platform.machine()}\n")
        print(
            "| work | by | forward passes | quartiles | bound | goal | forward pass |\n|---|---|---|---|---|---|---|"
        )
    for row in rows:
        for found in measured(row, options.rounds, options.peers, clock):
            if options.json:
                print(json.dumps(asdict(found)), flush=True)
            else:
                spread = f"{found.low:.2f} to {found.high:.2f}"
                goal = "" if row.goal is None or found.by != "ebcli" else f"{row.goal:.2f}"
                bound = "" if found.bound is None else f"{found.bound:.2f}"
                cells = [
                    found.name,
                    found.by,
                    f"{found.median:.2f}",
                    spread,
                    bound,
                    goal,
                    f"{found.forward:.3f} s",
                ]
                print(f"| {' | '.join(cells)} |", flush=True)
            if options.csv and not row.file:  # its unit is another one
                save(row, found)
            if row.expected is not None and found.median > SLACK * row.expected:
                failed.append(
                    f"{found.name} takes {found.median:.2f} forward passes instead of {row.expected}"
                )
    if failed:
        sys.exit("\n".join(failed))


def measured(row: Row, rounds: int, peers: bool, clock: Clock) -> Iterable[Measured]:
    """The ratios of a row, measured again if they are higher than `--check` allows."""
    if row.expected is None:
        return measure(row, rounds, peers, clock)
    for _ in range(TRIES):
        (found,) = measure(row, rounds, False, clock)
        if found.median <= SLACK * row.expected:
            break
    return [found]


def measure(row: Row, rounds: int, peers: bool, clock: Clock) -> Iterator[Measured]:
    """Time the unit, this package and its peers alternately."""
    torch.manual_seed(0)
    weights = "DEFAULT" if row.model == "efficientnet_lite0" else "none"
    original = ebcli.load_model(row.model, weights=weights).net
    net = copy.deepcopy(original).to(memory_format=LAYOUT)
    images = torch.randn(row.batch, 3, row.side, row.side)
    targets = torch.arange(row.classes).expand(row.batch, -1) if row.classes > 1 else 1

    def forward_pass() -> object:
        with torch.inference_mode():
            return net(images)

    def map_of_original() -> object:
        return ebcli.excitation_backprop(net, images, targets, row.layer, row.contrastive)

    if row.file:
        explained = in_file(original, row).to(memory_format=LAYOUT)
        layer = row.file_layer
        unit: Work = map_of_original
    else:
        explained = net
        layer = row.layer
        unit = forward_pass

    def map_of_row() -> ebcli.ExcitationResult:
        return ebcli.excitation_backprop(explained, images, targets, layer, row.contrastive)

    rule = "joint" if map_of_row().joint else "step by step"
    works: dict[str, Work] = {"ebcli": map_of_row}
    if peers:
        works |= dict(others(copy.deepcopy(net), images, row))  # grad-cam leaves its hooks in the network
    for work in (unit, *works.values()):
        work()
    baseline: list[float] = []
    times: dict[str, list[float]] = {by: [] for by in works}
    for _ in range(rounds):
        baseline.append(seconds(unit, clock))
        for by, work in works.items():
            times[by].append(seconds(work, clock))
    for by in works:
        ratios = sorted(t / f for t, f in zip(times[by], baseline, strict=True))
        low, _, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else 3 * ratios
        bound = multiplications(map_of_row) / multiplications(unit) if by == "ebcli" else None
        yield Measured(
            row.name,
            by,
            rule if by == "ebcli" else "",
            statistics.median(ratios),
            low,
            high,
            bound,
            statistics.median(baseline),
        )


def save(row: Row, found: Measured) -> None:
    """Add a figure to docs/evidence/cost.csv. Those of other layouts, months and versions are dropped."""
    from benchmarks import evidence

    work = {
        "network": row.model,
        "layer": "input" if row.layer is None else row.layer,
        "map": "" if not found.rule else "contrastive" if row.contrastive else "marginal",
        "rule": found.rule,
        "batch": row.batch,
        "classes": row.classes,
        "by": found.by,
    }
    bound = "" if found.bound is None else f"{found.bound:.2f}"
    new = {
        **work,
        "passes": f"{found.median:.2f}",
        "bound": bound,
        "layout": "channels_last",
        **evidence.stamp(),
    }
    same = {key: str(new[key]) for key in (*work, "layout", "date", "torch")}
    earlier = [one for one in evidence.read("cost") if all(one[key] == value for key, value in same.items())]
    evidence.update("cost", [*earlier, new], tuple(work))


def multiplications(work: Work) -> int:
    """Those of matrix products and convolutions, twice."""
    torch.backends.mha.set_fastpath_enabled(False)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        work()
    torch.backends.mha.set_fastpath_enabled(True)
    return counter.get_total_flops()


def in_file(net: torch.nn.Module, row: Row) -> torch.nn.Module:
    """The network as it is loaded from a file that it was exported to, for batches of any size."""
    images = torch.rand(2, 3, row.side, row.side)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = str(Path(folder, row.model + row.file))
        if row.file == ".onnx":
            free = {"images": {0: "batch"}}
            torch.onnx.export(net, (images,), path, input_names=["images"], dynamic_axes=free, dynamo=False)
        else:
            free = {0: torch.export.Dim("batch")}
            torch.export.save(torch.export.export(net, (images,), dynamic_shapes=(free,)), path)
        return ebcli.load_model(path).net


def others(net: torch.nn.Module, images: torch.Tensor, row: Row) -> Iterator[tuple[str, Work]]:
    """The closest methods of other libraries, at the layer if they support it, otherwise at the pixels."""
    module = None if row.layer is None else net.get_submodule(row.layer)
    if row.contrastive or row.classes > 1:
        return
    if importlib.util.find_spec("zennit"):
        from zennit.attribution import Gradient
        from zennit.composites import LayerMapComposite
        from zennit.rules import Pass, ZPlus
        from zennit.types import Activation, BatchNorm, Convolution, Linear

        rules = [(Activation, Pass()), (BatchNorm, Pass()), (Convolution, ZPlus()), (Linear, ZPlus())]
        one_hot = torch.nn.functional.one_hot(torch.ones(row.batch, dtype=torch.long), 1000).float()

        def zennit() -> object:
            with Gradient(net, LayerMapComposite(layer_map=rules)) as attributor:
                return attributor(images, one_hot)

        yield "zennit (ZPlus, to the pixels)", zennit
    if importlib.util.find_spec("captum"):
        from captum.attr import LayerGradCam, Saliency

        if module is None:
            yield (
                "captum (gradient)",
                lambda: Saliency(net).attribute(images.clone().requires_grad_(), target=1),
            )
        else:
            yield "captum (Grad-CAM)", lambda: LayerGradCam(net, module).attribute(images, target=1)
    if importlib.util.find_spec("pytorch_grad_cam") and module is not None:
        from pytorch_grad_cam import GradCAM
        from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

        cam, wanted = GradCAM(net, [module]), [ClassifierOutputTarget(1)] * row.batch
        yield "grad-cam (Grad-CAM, drawn large)", lambda: cam(images, wanted)


def seconds(work: Work, clock: Clock) -> float:
    start = clock()
    work()
    return clock() - start


if __name__ == "__main__":
    main()
