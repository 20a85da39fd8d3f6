"""The commands in docs/networks.md, docs/checkpoints.md and the README run, in a directory with the files they name."""

import json
import re
import shlex
import shutil
from collections import OrderedDict
from pathlib import Path

import pytest
import timm
import torch
import transformers
from click.testing import CliRunner
from safetensors.torch import save_file
from torch import nn
from torchvision.models import resnet18

from ebcli.cli.saliency import main
from ebcli.models import load_model

ROOT = Path(__file__).parents[2]
PAGE = "".join((ROOT / f"docs/{name}.md").read_text(encoding="utf-8") for name in ("networks", "checkpoints"))
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
COMMANDS += re.findall(r"^eb-saliency --model (?:timm/|hf/|nets\.py:).*$", README, re.MULTILINE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that the page assumes."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "photos").mkdir()
    shutil.copy(ROOT / "sample_images/chelsea.jpg", folder / "photos")
    shutil.copy(ROOT / "sample_images/chelsea.jpg", folder / "img.jpg")
    for name in ("nets.py", "heads.py"):
        shutil.copy(ROOT / "docs/examples" / name, folder)
    torch.manual_seed(0)
    torch.save(load_model(f"{folder}/nets.py:small").net.state_dict(), folder / "finetuned.pth")
    torch.save({"state_dict": resnet18(num_classes=10).state_dict()}, folder / "finetuned-resnet18.pth")
    save_file(
        timm.create_model("resnet18", num_classes=10).state_dict(), folder / "finetuned-timm.safetensors"
    )
    small, image = load_model(f"{folder}/nets.py:small").net, torch.rand(1, 3, 64, 64)
    torch.onnx.export(small, (image,), folder / "net.onnx", dynamo=False)
    layers = OrderedDict(
        features=nn.Sequential(nn.Conv2d(3, 64, 3), *(nn.ReLU() for _ in range(23))), head=small[6:]
    )
    torch.export.save(torch.export.export(nn.Sequential(layers), (image,)), folder / "net.pt2")
    names = [f"class {letter}" for letter in "abcdefghij"]
    (folder / "labels.txt").write_text("\n".join(names))
    (folder / "labels.json").write_text(json.dumps(dict(enumerate(names))))
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1], num_labels=3
    )
    model = transformers.ResNetForImageClassification(config)
    model.save_pretrained(folder / "my_model")
    torch.save(model.state_dict(), folder / "finetuned-hf.pth")
    return folder


@pytest.mark.release
@pytest.mark.parametrize("line", COMMANDS)
def test_command(line: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    arguments = shlex.split(line)[1:]
    if "timm/vit_small_patch16_224" in arguments:
        arguments += ["--weights", "none"]  # the published ones would be downloaded
    result = CliRunner().invoke(main, arguments, env={"EB_SALIENCY_WORKERS": "0"})
    assert result.exit_code == 0, result.output
    if "layers" in arguments:
        assert result.stdout.splitlines()[0].split() == ["0", "Conv2d", "32x30x30", "2.13"]
        return
    pictures = [path for path in result.stdout.splitlines() if not path.endswith(".npz")]
    assert len(pictures) == (2 if "--top-k" in arguments else 1)
    assert all(Path(picture).is_file() for picture in pictures)
    if "--class-names" in arguments:
        assert re.search(r"(chelsea|img)\.jpg\.\d-class-[a-j]\.jpg$", pictures[0])


def test_the_error_message_on_the_page(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    state = torch.load("finetuned.pth", weights_only=True)
    state["8.b"] = state.pop("8.bias")
    torch.save(state, "finetuned.pth")
    result = CliRunner().invoke(main, ["photos", "--model", "nets.py:small", "--weights", "finetuned.pth"])
    assert result.exit_code == 2
    assert result.stderr.removeprefix("Error: ") in PAGE
