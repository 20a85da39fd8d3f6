"""Run Excitation Backprop on every supported network: docs/networks/models.csv and the table of docs/networks.md.

    python -m benchmarks.models_table                    # all networks: an hour, 14 GB of memory
    python -m benchmarks.models_table --only 'resnet*'   # some; can be repeated
    python -m benchmarks.models_table --only nothing     # write the tables again

Measurements are kept in a JSON lines file (``--cache``), so that an interrupted run can be resumed. ``--again`` repeats
measurements. Networks that were not measured keep their lines of the CSV file.
"""

from __future__ import annotations

import argparse
import csv
import gc
import io
import json
import sys
import tempfile
from fnmatch import fnmatch
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/helpers"))

import library_models  # noqa: E402
import zoo  # noqa: E402

KINDS = {
    "Classifiers": zoo.CLASSIFIERS,
    "Video": zoo.VIDEO,
    "Segmentation": zoo.SEGMENTATION,
    "Detection": zoo.DETECTORS,
    "timm": list(library_models.TIMM),
    "Hugging Face": list(library_models.HUGGING_FACE),
    "Ultralytics": library_models.ULTRALYTICS,
    "Files": library_models.FILES,
}

# Families of torchvision, and the names of their networks
FAMILIES = {
    "AlexNet": ["alexnet"],
    "VGG": ["vgg*"],
    "ResNet, ResNeXt, Wide ResNet": ["resnet*", "resnext*", "wide_resnet*"],
    "RegNet": ["regnet_*"],
    "DenseNet": ["densenet*"],
    "GoogLeNet": ["googlenet"],
    "Inception v3": ["inception_v3"],
    "SqueezeNet": ["squeezenet*"],
    "ShuffleNet v2": ["shufflenet*"],
    "MNASNet": ["mnasnet*"],
    "MobileNet v2": ["mobilenet_v2"],
    "MobileNet v3": ["mobilenet_v3*"],
    "EfficientNet-Lite0 (bundled)": ["efficientnet_lite0"],
    "EfficientNet, v2": ["efficientnet_b*", "efficientnet_v2*"],
    "ConvNeXt": ["convnext*"],
    "Swin, v2": ["swin_*"],
    "MaxViT": ["maxvit*"],
    "ViT": ["vit_*"],
    "R3D, MC3, R(2+1)D": ["r3d*", "mc3*", "r2plus1d*"],
    "S3D": ["s3d"],
    "MViT, v2": ["mvit*"],
    "Video Swin": ["swin3d*"],
    "FCN, DeepLabV3 (ResNet)": ["fcn_*", "deeplabv3_resnet*"],
    "DeepLabV3, LR-ASPP (MobileNet)": ["deeplabv3_mobilenet*", "lraspp*"],
    "Faster, Mask, Keypoint R-CNN (ResNet)": ["*rcnn_resnet*"],
    "Faster R-CNN (MobileNet)": ["fasterrcnn_mobilenet*"],
    "RetinaNet, FCOS": ["retinanet*", "fcos*"],
    "SSD, SSDlite": ["ssd*"],
}
COLUMNS = "network task input default_layer rule mass_there mass_at_input same_logits".split()
BEGIN, END = "<!-- families of torchvision: begin -->", "<!-- families of torchvision: end -->"


def measure(name: str) -> dict[str, str]:
    """One line of the CSV file: marginal and contrastive maps at the default layer and at the input."""
    specimen = library_models.full(name) if "/" in name else zoo.full(name)
    joint = True if name in zoo.VIDEO or specimen.target is not None else None  # as in the command
    plain, same, found = specimen.forward(), True, {}
    for contrastive in (True, False):
        for layer in (specimen.layer, None):
            result = found[layer] = specimen.excite(layer, contrastive=contrastive, joint=joint)
            same &= torch.equal(result.logits, plain)
            relevance = result.relevance
            if not relevance.isfinite().all() or not (contrastive or (relevance >= 0).all()):
                raise AssertionError(
                    f"{name}: relevance at {layer or 'the input'} is not finite or below zero"
                )
            del result, relevance
    values = (
        name,
        next(kind for kind, names in KINDS.items() if name in names).lower(),
        "x".join(map(str, specimen.inputs.shape[2:])),
        specimen.layer,
        "jointly" if found[specimen.layer].joint else "step by step",
        *(f"{found[layer].mass.item():.4f}" for layer in (specimen.layer, None)),
        "yes" if same else "no",
    )
    return dict(zip(COLUMNS, values, strict=True))


def families(rows: dict[str, dict[str, str]]) -> str:
    """The table of docs/networks.md: a line for each family of torchvision."""
    lines = [BEGIN, "", "| family | networks | default layer | explained |", "|---|--:|---|---|"]
    for family, patterns in FAMILIES.items():
        found = [row for name, row in rows.items() if any(fnmatch(name, pattern) for pattern in patterns)]
        if found:
            layers = list(dict.fromkeys(f"`{row['default_layer']}`" for row in found))
            if len(layers) > 2:
                layers = [f"`{row['default_layer']}` ({row['network']})" for row in (found[0], found[-1])]
                layers = [" to ".join(layers)]
            rules = dict.fromkeys(row["rule"] for row in found)
            lines.append(f"| {family} | {len(found)} | {', '.join(layers)} | {', '.join(rules)} |")
    return "\n".join([*lines, "", END])


def read(path: Path) -> dict[str, dict[str, str]]:
    """The lines of the CSV file, by network."""
    if not path.exists():
        return {}
    with path.open(encoding="utf-8", newline="") as file:
        return {row["network"]: row for row in csv.DictReader(file)}


def written(rows: dict[str, dict[str, str]], columns: list[str]) -> str:
    """Lines of a CSV file."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows.values())
    return stream.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--only", action="append", metavar="PATTERN", help="networks to measure, such as 'resnet*'"
    )
    parser.add_argument("--again", action="store_true", help="measure again what the cache holds")
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir(), "models_table.jsonl"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    known = {} if options.again else _read(options.cache)
    patterns = options.only or ["*"]
    names = [name for names in KINDS.values() for name in names]
    for name in names:
        if name in known or not any(fnmatch(name, pattern) for pattern in patterns):
            continue
        row = measure(name)
        gc.collect()
        with options.cache.open("a", encoding="utf-8") as cache:
            cache.write(json.dumps(row) + "\n")
        print(" ".join(list(row.values())[:-1]), flush=True)
    table, page = ROOT / "docs/networks/models.csv", ROOT / "docs/networks.md"
    measured = read(table) | _read(options.cache)
    rows = {name: measured[name] for name in names if name in measured}
    table.parent.mkdir(exist_ok=True)
    table.write_text(written(rows, COLUMNS), encoding="utf-8")
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    page.write_text(before + families(rows) + rest.partition(END)[2], encoding="utf-8")
    missing = [name for name in names if name not in rows]
    print(f"{table}: {len(rows)} networks" + (f", without {', '.join(missing)}" if missing else ""))


def _read(cache: Path) -> dict[str, dict[str, str]]:
    """The latest measurement of each network."""
    if not cache.exists():
        return {}
    return {row["network"]: row for row in map(json.loads, cache.read_text(encoding="utf-8").splitlines())}


if __name__ == "__main__":
    main()
