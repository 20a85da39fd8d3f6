"""Training the networks: seeded, kept in a folder, resumed where a run ended."""

from __future__ import annotations

import argparse
import functools
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .networks import FAMILIES
from .pictures import TASKS, Task

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / "build" / "trained"
BATCH = 32
POOL = 16384  # pictures to train on
SHIFT = 4  # pixels, by which they move from one time to the next
ENOUGH = 0.95  # accuracy
ROUNDS = 4


def accuracy(net: nn.Module, task: Task, count: int = 1024, seed: int = 1) -> float:
    """The share of pictures with one object that the network gets right; none of them was trained on."""
    generator = torch.Generator().manual_seed(seed)
    net.eval()
    right = 0
    with torch.inference_mode():
        for _ in range(count // 128):
            pictures = task.pictures(128, 1, generator)
            right += int((net(pictures.images).argmax(1) == pictures.labels[:, 0]).sum())
    return right / (count // 128 * 128)


def trained(family: str, task: Task, cache: Path = CACHE, rounds: int = ROUNDS) -> tuple[nn.Module, float]:
    """A network of a family, trained on a task, and its accuracy; from the folder if it has been trained before.

    A network below 95% is trained for another round, as long as it has not had so many rounds.
    """
    kind, path = FAMILIES[family], cache / f"{task.name}-{family}.pt"
    torch.manual_seed(0)
    net = kind.build(task.num_classes).to(
        memory_format=torch.channels_last
    )  # several times as fast on processors
    kept = torch.load(path, weights_only=True) if path.exists() else {"rounds": 0, "accuracy": 0.0}
    if kept["rounds"]:
        net.load_state_dict(kept["state"])
    while kept["accuracy"] < ENOUGH and kept["rounds"] < rounds:
        began = time.monotonic()
        _round(net, task, kind.steps, kind.rate, seed=100 + kept["rounds"])
        kept = {"rounds": kept["rounds"] + 1, "accuracy": accuracy(net, task), "state": net.state_dict()}
        took = time.monotonic() - began
        print(
            f"{family} on {task.name}: round {kept['rounds']}, {kept['accuracy']:.3f}, {took:.0f} s",
            flush=True,
        )
        cache.mkdir(parents=True, exist_ok=True)
        torch.save(kept, path.with_suffix(".part"))
        path.with_suffix(".part").replace(path)
    return net.eval(), kept["accuracy"]


@functools.lru_cache(maxsize=1)
def _pool(name: str) -> tuple[Tensor, Tensor]:
    """The pictures to train on, in half precision, and their labels."""
    generator = torch.Generator().manual_seed(0)
    batches = [TASKS[name].pictures(256, 1, generator) for _ in range(POOL // 256)]
    images = torch.cat([batch.images.half() for batch in batches]).contiguous(
        memory_format=torch.channels_last
    )
    return images, torch.cat([batch.labels[:, 0] for batch in batches])


def _round(net: nn.Module, task: Task, steps: int, rate: float, seed: int) -> None:
    images, labels = _pool(task.name)
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)  # of dropout
    optimizer = torch.optim.AdamW(net.parameters(), rate, weight_decay=0.02)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps, pct_start=0.15)
    net.train()
    for _ in range(steps):
        chosen = torch.randint(POOL, (BATCH,), generator=generator)
        down, right = (torch.randint(-SHIFT, SHIFT + 1, (2,), generator=generator)).tolist()
        loss = F.cross_entropy(net(images[chosen].float().roll((down, right), (2, 3))), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        schedule.step()


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the networks that are not trained yet.")
    parser.add_argument("--family", action="append", choices=FAMILIES)
    parser.add_argument("--task", action="append", choices=TASKS)
    parser.add_argument("--cache", type=Path, default=CACHE)
    options = parser.parse_args()
    torch.set_num_threads(2)
    for name in options.task or TASKS:
        for family in options.family or FAMILIES:
            _, found = trained(family, TASKS[name], options.cache)
            print(f"{family} on {name}: {found:.3f}", flush=True)


if __name__ == "__main__":
    main()
