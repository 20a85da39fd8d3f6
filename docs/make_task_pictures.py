"""Draw the pictures of the tasks and of docs/own-network.md, with small networks.

    python docs/make_task_pictures.py           # all of them: this trains networks
    python docs/make_task_pictures.py --by-hand  # those of networks whose weights are set by hand

Writes docs/pictures/task-* and story-*. Weights are those of tests/evaluate/weights. make_pictures.py draws the others.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import nibabel
import numpy as np
import torch
from click.testing import CliRunner
from PIL import Image, ImageDraw
from torch import Tensor

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.trained import balls, captions, scenes, sentences  # noqa: E402
from benchmarks.trained.rounded import restored  # noqa: E402
from ebcli.cli.saliency import main  # noqa: E402

WEIGHTS = ROOT / "tests/evaluate/weights"
SIDE = 256  # of a picture in pixels
NETS = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
import ebcli, torch
from benchmarks.trained import balls, dense_training
from benchmarks.trained.pictures import LETTERS
from benchmarks.trained.rounded import restored


def trained(name, size):
    net = dense_training.NETWORKS[name]()
    net.load_state_dict(restored(torch.load({str(WEIGHTS)!r} + f"/{{name}}.pt", weights_only=True)))
    net.categories = ["background", *LETTERS][-size:]
    return net


def detector():
    return trained("FasterRCNN", 11)


def segments():
    net = trained("LRASPP", 11)
    net.preprocessing = ebcli.Preprocessing(resize=64, crop=64, mean=0.45, std=0.25)
    return net


def video():
    net = trained("MC3", 10)
    net.task, net.frames, net.frame_rate = "video", 8, 4
    net.preprocessing = ebcli.Preprocessing(resize=64, crop=64, mean=0.45, std=0.25)
    return net


def ball():
    net = balls.network()
    net.load_state_dict(torch.load(balls.WEIGHTS, weights_only=True))
    net.categories = ["cubes", "ball"]
    return net
"""


def picture(image: Tensor, mean: float = 0.0, std: float = 1.0) -> Image.Image:
    """An enlarged picture of values (3, 64, 64)."""
    pixels = ((image * std + mean).clamp(0, 1) * 255).byte().permute(1, 2, 0).numpy()
    return Image.fromarray(pixels).resize((SIDE, SIDE), Image.Resampling.BICUBIC)


def run(name: str, *arguments: str, which: int = 0) -> None:
    """Explain, and keep one of the pictures as docs/pictures/NAME."""
    result = CliRunner().invoke(main, [*arguments, "-o", f"out-{name}"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    pictures = [line for line in result.stdout.splitlines() if line.endswith((".png", ".jpg"))]
    shown = Image.open(pictures[which]).convert("RGB")
    shown.thumbnail((840, 840))
    shown.save(ROOT / f"docs/pictures/{name}.jpg", quality=88)


BY_HAND = f"""
import sys
sys.path.insert(0, {str(ROOT / "tests/helpers")!r})
import ebcli, torch
from PIL import Image
from several_inputs import Difference
from torchvision.transforms.functional import to_tensor
from two_heads import two
from value_nets import Heights, Ripeness

FINE = ebcli.Preprocessing(resize=64, crop=64, mean=0.0, std=1.0)


class Change(Difference):
    preprocessing = FINE
    categories = "changed", "same"

    def other_inputs(self, path):
        with Image.open("after.png") as image:
            return to_tensor(image.resize((64, 64)))


def colors():
    net = two()
    net.preprocessing = FINE
    return net

"""


def shapes(left: str, right: str) -> Image.Image:
    """A disc and a square of two colors."""
    image = Image.new("RGB", (SIDE, SIDE), (70, 70, 70))
    draw = ImageDraw.Draw(image)
    draw.ellipse((24, 72, 120, 168), fill=left)
    draw.rectangle((148, 80, 236, 168), fill=right)
    return image


def make_by_hand() -> None:
    """Draw with networks that read colors: what each of them uses is known."""
    Path("by_hand.py").write_text(BY_HAND, encoding="utf-8")
    shapes("red", "blue").save("shapes.png")
    run("task-number", "shapes.png", "--model", "by_hand.py:Ripeness", "--signed")
    network = ("--model", "by_hand.py:Heights", "--scores", "raw")
    run("task-depth", "shapes.png", *network, "--where", "112,120")
    run("task-head", "shapes.png", "--model", "by_hand.py:colors", "--head", "color", "--target", "blue")
    shapes("blue", "lime").save("before.png")
    shapes("blue", "red").save("after.png")
    run("task-inputs", "before.png", "--model", "by_hand.py:Change", "--target", "changed")


def make() -> None:
    """Write inputs and networks into the working directory, and draw."""
    Path("nets.py").write_text(NETS, encoding="utf-8")
    scene = scenes.scenes(4, torch.Generator().manual_seed(11))
    picture(scene.images[0]).save("scene.png")
    run("task-detector", "scene.png", "--model", "nets.py:detector", "--top-k", "1")
    run("task-segmentation", "scene.png", "--model", "nets.py:segments", "--top-k", "1")

    torch.manual_seed(0)
    clip = scenes.clips(4, torch.Generator().manual_seed(3)).images[0]
    frames = [picture(frame, 0.45, 0.25) for frame in clip.unbind(1)]
    frames[0].save("clip.png", save_all=True, append_images=frames[1:], duration=250)
    run("task-video", "clip.png", "--model", "nets.py:video", "--top-k", "1", which=-1)

    net = captions.build("CLIP")
    net.load_state_dict(restored(torch.load(WEIGHTS / "CLIP.pt", weights_only=True)))
    captions.save(net, Path("clip"))
    drawn = captions.TASK.pictures(4, 2, torch.Generator().manual_seed(5))
    picture(drawn.images[0], captions.MEAN, captions.STD).save("letters.png")
    text = captions.CAPTIONS[int(drawn.labels[0, 0])]
    run("task-text", "letters.png", "--model", "clip/clip", "--target", text)

    values = balls.volumes(4, torch.Generator().manual_seed(6), balls=1.0).values[0].numpy()
    nibabel.save(nibabel.Nifti1Image(values[0].T, np.diag([2.0, 2.0, 2.0, 1.0])), "scan.nii.gz")
    run("task-volume", "scan.nii.gz", "--model", "nets.py:ball", "--target", "ball", "--layer", "input")

    talker = sentences.build()
    talker.load_state_dict(restored(torch.load(WEIGHTS / "LLaVA.pt", weights_only=True)))
    sentences.save(talker, Path("small_llava"))
    described = sentences.described(1, torch.Generator().manual_seed(2)).images[0]
    picture(described, sentences.MEAN, sentences.STD).save("described.png")
    sys.path.append(str(ROOT / "docs/examples"))
    from digits import train, write_pictures  # docs/own-network.md

    Path("digits.py").write_text(
        (ROOT / "docs/examples/digits.py").read_text(encoding="utf-8"), encoding="utf-8"
    )
    write_pictures("training", range(1000), marked=True)
    write_pictures("test", range(1000, 1200), marked=True)
    for name, covered in (("before", False), ("after", True)):
        train("training", f"{name}.pth", covered)
        network = ("--model", "digits.py:digits", "--weights", f"{name}.pth", "--target", "seven")
        run(f"story-{name}", "test/seven/1009.png", *network, "--panel", "--cell-size", "200")

    run("task-answer", "ask", "described.png", "describe the picture", "--model", "small_llava")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        make_by_hand()
        if "--by-hand" not in sys.argv:
            make()
