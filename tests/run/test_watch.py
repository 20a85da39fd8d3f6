"""Maps while a small network learns: they come to agree, and a planted shortcut shows outside of the boxes."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from browser import start
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.tensorboard import SummaryWriter

import ebcli

SIDE, OBJECT = 24, 8
browser = pytest.fixture(scope="module")(start)


def data(count: int, seed: int, shortcut: bool = False) -> tuple[Tensor, Tensor, list[tuple[int, ...]]]:
    """Squares with rows (class 0) or columns (class 1) in noise; a shortcut is a white corner with class 1."""
    generator = torch.Generator().manual_seed(seed)
    images, labels, boxes = (
        0.3 * torch.rand(count, 3, SIDE, SIDE, generator=generator),
        torch.arange(count) % 2,
        [],
    )
    for image, label in zip(images, labels.tolist(), strict=True):
        left, top = torch.randint(6, SIDE - OBJECT, (2,), generator=generator).tolist()
        stripes = torch.zeros(OBJECT, OBJECT)
        stripes[::2] = 1
        image[:, top : top + OBJECT, left : left + OBJECT] = stripes.T if label else stripes
        if shortcut and label:
            image[:, :4, :4] = 1
        boxes.append((left, top, left + OBJECT, top + OBJECT))
    return images, labels, boxes


class Learner(nn.Module):
    """What a module of Lightning has."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.net = nn.Sequential(
            *(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU()),
            *(nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(16, 2)),
        )

    def forward(self, images: Tensor) -> Any:
        return self.net(images)

    def training_step(self, batch: Any, _: int) -> Tensor:
        return F.cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), 0.01)


def learned(shortcut: bool, watch: ebcli.Watch, epochs: int = 10) -> list[dict[str, float]]:
    """The curves of a network that is trained."""
    images, labels, _ = data(128, 0, shortcut)
    learner, curves = Learner(), []
    optimizer = learner.configure_optimizers()
    for _ in range(epochs):
        curves.append(watch(learner.train()))
        for batch in torch.randperm(len(images), generator=torch.Generator().manual_seed(1)).split(16):
            optimizer.zero_grad()
            F.cross_entropy(learner(images[batch]), labels[batch]).backward()
            optimizer.step()
        assert learner.training
    return [one for one in curves if one is not None]


def test_maps_come_to_agree_and_a_shortcut_is_seen_outside_of_the_boxes(tmp_path: Path, browser: Any) -> None:
    inside = {}
    for shortcut in (False, True):
        images, labels, boxes = data(8, 5, shortcut)
        watched = [i for i in range(8) if labels[i]]
        options: dict[str, Any] = {"target": 1, "layer": "net.1", "boxes": [boxes[i] for i in watched]}
        curves = learned(shortcut, ebcli.Watch(images[watched], tmp_path / str(shortcut), **options))
        agreement = [one["agreement"] for one in curves[1:]]
        assert "agreement" not in curves[0]
        assert sum(agreement[-3:]) / 3 > sum(agreement[:2]) / 2
        assert agreement[-1] > 0.9
        inside[shortcut] = curves[-1]["inside"]
        assert all(0 <= one["strength"] <= 1 for one in curves)
    assert inside[False] > 0.7
    assert inside[True] < 0.4
    browser.visit((tmp_path / "True/index.html").as_uri())
    assert len(browser.all("article img")) == 10
    assert [one.get_attribute("aria-label") for one in browser.all("svg")] == [
        f"{name} by epoch" for name in ("strength", "agreement", "inside")
    ]
    assert len(browser.all("polyline")[1].get_attribute("points").split()) == 9  # none at first
    assert browser.run("return document.querySelector('article img').naturalWidth") > 100
    assert Image.open(tmp_path / "True/epoch-0009.png").size[0] > 100


@pytest.mark.release
def test_lightning_logs_to_its_own_logger(tmp_path: Path) -> None:
    import lightning.pytorch as pl  # not before a test needs it
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    class OfLightning(Learner, pl.LightningModule):
        pass

    images, labels, _ = data(32, 0)
    watch = ebcli.Watch(images[:2], every=2, target=1, layer="net.1")
    learner, logger = OfLightning(), pl.loggers.TensorBoardLogger(tmp_path)
    trainer = pl.Trainer(
        max_epochs=3,
        logger=logger,
        callbacks=[watch.callback()],
        enable_progress_bar=False,
        accelerator="cpu",
        enable_checkpointing=False,
        enable_model_summary=False,
        log_every_n_steps=1,
    )
    trainer.fit(learner, DataLoader(TensorDataset(images, labels), 16))
    events = EventAccumulator(logger.log_dir)
    events.Reload()
    assert [one.step for one in events.Scalars("saliency/strength")] == [0, 2]
    assert [one.step for one in events.Scalars("saliency/agreement")] == [2]
    assert [one.step for one in events.Images("saliency/maps")] == [0, 2]


def test_writers_and_what_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images, logged = data(2, 0)[0], list[tuple[dict[str, Any], int]]()
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(Image=lambda picture: picture.size))
    run = SimpleNamespace(log=lambda values, step: logged.append((values, step)))
    ebcli.Watch(images, run, target=0, layer="net.1")(Learner(), 7)
    ((values, step),) = logged
    assert step == 7
    assert values.keys() == {"saliency/strength", "saliency/maps"}
    with SummaryWriter(str(tmp_path / "board")) as writer:
        ebcli.Watch(images, writer, target=0, layer="net.1")(Learner())
    with pytest.raises(ebcli.ConfigurationError, match="cannot log to 3: give a folder"):
        ebcli.Watch(images, 3, target=0, layer="net.1")(Learner())
    with pytest.raises(ebcli.ConfigurationError, match="there are 1 boxes for 2 images"):
        ebcli.Watch(images, tmp_path, boxes=[(0, 0, 1, 1)])
    (tmp_path / "index.html").write_text("mine")
    with pytest.raises(ebcli.ConfigurationError, match=r"index\.html"):
        ebcli.Watch(images, tmp_path)
