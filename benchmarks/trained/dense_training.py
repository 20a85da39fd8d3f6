"""Training detectors, segmentation networks and video classifiers: seeded, and kept in a folder."""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.ops import box_convert, box_iou

import ebcli
from ebcli.models.detection import is_detector

from .dense_networks import DETECTORS, SEGMENTATION, VIDEO
from .dense_queries import query_loss
from .pictures import SIDE
from .scenes import Scenes, clips, scenes
from .training import CACHE

STEPS = {
    "SSDlite": 1500,
    "FCOS": 800,
    "RetinaNet": 800,
    "FasterRCNN": 800,
    "YOLO": 1500,
    "LRASPP": 600,
    "FCN": 600,
}
STEPS |= {"DETR": 4500, "DeepLabV3": 600, "R3D": 1000, "MC3": 600}
RATE, RATE_OF_QUERIES = 3e-3, 1e-3
BATCH = 16
POOL = 2048  # scenes to train on
NETWORKS: dict[str, Callable[[], nn.Module]] = DETECTORS | SEGMENTATION | VIDEO


def trained(name: str, cache: Path = CACHE) -> nn.Module:
    """A network, trained or from the folder, in evaluation mode."""
    torch.manual_seed(0)
    net, path = NETWORKS[name](), cache / f"{name}.pt"
    if path.exists():
        net.load_state_dict(torch.load(path, weights_only=True))
        return net.eval()
    by_task = _detection_loss if name in DETECTORS else _pixel_loss if name in SEGMENTATION else _clip_loss
    loss, rate = (_query_loss, RATE_OF_QUERIES) if name == "DETR" else (by_task, RATE)
    optimizer = torch.optim.AdamW(net.parameters(), rate, weight_decay=0.02)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=STEPS[name], pct_start=0.15)
    generator, began = torch.Generator().manual_seed(100), time.process_time()
    net.train()
    for step in range(STEPS[name]):
        value = loss(net, generator)
        optimizer.zero_grad()
        value.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 2.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 99:
            print(
                f"{name}: step {step + 1}, {float(value):.3f}, {time.process_time() - began:.0f} s",
                flush=True,
            )
    cache.mkdir(parents=True, exist_ok=True)
    torch.save(net.state_dict(), path)
    return net.eval()


@functools.cache
def _scenes() -> Scenes:
    return scenes(POOL, torch.Generator().manual_seed(0))


def _detection_loss(net: nn.Module, generator: torch.Generator) -> Tensor:
    pool, chosen = _scenes(), torch.randint(POOL, (BATCH,), generator=generator)
    if not is_detector(net):
        boxes, classes = pool.boxes[chosen].flatten(0, 1) / SIDE, pool.labels[chosen].flatten()
        places = {"bboxes": box_convert(boxes, "xyxy", "cxcywh"), "cls": classes[:, None].float()}
        images = torch.arange(BATCH).repeat_interleave(2)
        value, _ = cast(Any, net).loss({"img": pool.images[chosen], "batch_idx": images.float(), **places})
        return value.sum() / BATCH
    targets = [{"boxes": pool.boxes[i], "labels": pool.labels[i]} for i in chosen]
    return torch.stack(list(net(list(pool.images[chosen]), targets).values())).sum()


def _query_loss(net: nn.Module, generator: torch.Generator) -> Tensor:
    drawn = scenes(2 * BATCH, generator)  # new ones in each step, as there are many
    return query_loss(net, drawn.images, drawn.boxes, drawn.labels)


def _pixel_loss(net: nn.Module, generator: torch.Generator) -> Tensor:
    pool, chosen = _scenes(), torch.randint(POOL, (BATCH,), generator=generator)
    return F.cross_entropy(net(normalized(pool.images[chosen]))["out"], pool.masks[chosen])


def _clip_loss(net: nn.Module, generator: torch.Generator) -> Tensor:
    drawn = clips(BATCH, generator)  # kept, so many would take gigabytes
    logits = net(drawn.images)
    return F.cross_entropy(logits, F.one_hot(drawn.labels, logits.shape[1]).float().mean(1))


def normalized(images: Tensor) -> Tensor:
    """Pixels from 0 to 1, as the networks of one kind take them, with roughly zero mean and unit variance."""
    return (images - 0.45) / 0.25


@torch.inference_mode()
def accuracy(name: str, net: nn.Module, count: int = 128, seed: int = 1) -> float:
    """The share of letters that a network gets right, of pictures that it was not trained on.

    Detectors: the letters that are found, with at least half of the box, and at a score of at least 0.5.
    Segmentation: the intersection of a letter and its prediction over their union. Video: the letters that are among
    the two likeliest classes.
    """
    generator = torch.Generator().manual_seed(seed)
    if name in VIDEO:
        clip = clips(count, generator)
        likeliest = net(clip.images).topk(2).indices
        return float((clip.labels[:, :, None] == likeliest[:, None]).any(2).float().mean())
    drawn = scenes(count, generator)
    if name in DETECTORS:
        each = zip(_detected(net, drawn.images), drawn.boxes, drawn.labels, strict=True)
        return sum(_found(found, boxes, labels) for found, boxes, labels in each) / count
    predicted = net(normalized(drawn.images))["out"].argmax(1)
    asked = drawn.labels[:, :, None, None]
    same, own = (predicted[:, None] == asked), (drawn.masks[:, None] == asked)
    return float(((same & own).sum((2, 3)) / (same | own).sum((2, 3))).mean())


def _detected(net: nn.Module, images: Tensor) -> list[dict[str, Tensor]]:
    """What a detector finds in each image, as torchvision's detectors say it."""
    if is_detector(net):
        found: list[dict[str, Tensor]] = net(list(images))
        return found
    return [
        {
            "scores": torch.tensor([one.score for one in each]),
            "labels": torch.tensor([one.label for one in each]),
            "boxes": torch.tensor([one.box for one in each]).reshape(-1, 4),
        }
        for each in ebcli.detections(net, images)
    ]


def _found(found: dict[str, Tensor], boxes: Tensor, labels: Tensor) -> float:
    sure = found["scores"] >= 0.5
    right = (box_iou(boxes, found["boxes"]) >= 0.5) & (labels[:, None] == found["labels"]) & sure
    return float(right.any(1).float().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the networks that are not trained yet.")
    parser.add_argument("names", nargs="*", default=list(NETWORKS), choices=NETWORKS)
    parser.add_argument("--cache", type=Path, default=CACHE)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.names:
        print(f"{name}: {accuracy(name, trained(name, options.cache)):.3f}", flush=True)


if __name__ == "__main__":
    main()
