"""Networks of Ultralytics: ``ultralytics/yolo11n.pt``, ``ultralytics/runs/best.pt``, ``ultralytics/yolo11n.yaml``.

Its files are pickles. Ultralytics is asked to admit only known classes, which it does unless it was imported before.
"""

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import Module

from ebcli.datatypes.input_spec import InputSpec
from ebcli.errors import ConfigurationError, closest, first_line, import_optional
from ebcli.models.checkpoint import read_checkpoint
from ebcli.models.classes import Names
from ebcli.models.detection import Candidates, YoloOutput
from ebcli.models.keywords import CLASSIFICATION, DEFAULT, DETECTION, PAD, SEGMENTATION, UNTRAINED
from ebcli.models.sources.base import ModelSource, fetch_errors

_TASKS = {
    "detect": DETECTION,
    "segment": DETECTION,
    "pose": DETECTION,
    "classify": CLASSIFICATION,
    "semantic": SEGMENTATION,
}
_GRAY = 114  # of the letterbox
_SIDE = 640  # pixels, unless the file says otherwise
_SIDE_OF_CLASSIFIERS = 224
_SETTINGS = {
    "YOLO_VERBOSE": "false",
    "YOLO_OFFLINE": "true",
    "YOLO_AUTOINSTALL": "false",
    "ULTRALYTICS_SAFE_LOAD": "true",
}


class Ultralytics(ModelSource):
    """A file of Ultralytics, published or local, or one of its configurations, which is untrained."""

    takes_any_size = True
    _prefix = "ultralytics/"

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._trained_on: dict[str, Any] = {}
        with _restoring():
            self._library = import_optional("ultralytics")
        self._is_local = os.path.isfile(name)
        suffix = Path(name).suffix
        if suffix == ".yaml":
            self.default_weights = UNTRAINED
            return
        names = sorted(self._library.utils.downloads.GITHUB_ASSETS_NAMES)
        if suffix != ".pt" or not (self._is_local or name in names):
            hint = closest(name, names) or "name a .pt file, or a configuration such as yolo11n.yaml"
            raise self._error(f"is neither a file nor a model that Ultralytics publishes: {hint}")

    def build(self, num_classes: int | None = None) -> Module:
        if not self._is_local or self.name.endswith(".yaml"):
            return self._read(str(Path(self.name).with_suffix(".yaml")))
        net: Any = self._read(self.name)
        fresh = type(net)(net.yaml, verbose=False)
        fresh.names = net.names
        return self._complete(fresh, net.task)

    def pretrained(self, weights: str) -> Module:
        if weights == UNTRAINED:
            return self.build()
        return self._read(str(self._file()))

    def transforms(self, net: Any, weights: str) -> InputSpec:
        side = _SIDE
        options: dict[str, Any] = {"fit": PAD, "fill": _GRAY}
        if net.task == "classify":
            side = _SIDE_OF_CLASSIFIERS
            options = {}
        side = self._trained_on.get("imgsz") or side
        if not isinstance(side, int):
            side = max(side)
        return InputSpec.as_is((side, side), net.yaml.get("channels", 3), resize=(side,), **options)

    def categories(self, net: Any, weights: str) -> Names:
        names = [str(name) for _, name in sorted(net.names.items())]
        if names == list(map(str, range(len(names)))):
            return None
        return names

    def task(self, net: Any) -> str:
        return _TASKS[net.task]

    def files(self, weights: str) -> Sequence[Path]:
        if self._is_local or weights == DEFAULT:
            return [self._file()]
        return []

    def _file(self) -> Path:
        """The file of the network; one that Ultralytics publishes is downloaded, to where torch.hub has its files."""
        if self._is_local:
            return Path(self.name)
        file = Path(torch.hub.get_dir(), "checkpoints", self.name)
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            with fetch_errors(self._title, f"put that file into {file.parent}, or pass --weights none"):
                self._library.utils.downloads.attempt_download_asset(file)
        return file

    def _read(self, file: str) -> Module:
        """The network of a file or of a configuration."""
        try:
            model = self._library.YOLO(file)
        except Exception as error:  # whatever unpickling and the library raise
            if _is_state_dict(file):
                advice = f"pass --weights {file}, and --model ultralytics/yolo11n.yaml or the like"
                raise ConfigurationError(f"{file} is a state dict: {advice}") from error
            reason = first_line(error).removeprefix("ERROR ❌️ ")
            advice = (
                "give a model of Ultralytics, such as ultralytics/yolo11n.pt; "
                "if it has classes of its own, ULTRALYTICS_SAFE_LOAD=false runs the code in it"
            )
            raise ConfigurationError(f"cannot load {self._title} ({reason}): {advice}") from error
        if not isinstance(model.model, self._library.nn.BaseModel):
            kind = type(model.model).__name__
            raise ConfigurationError(f"{file} holds a {kind}, not a model of Ultralytics")
        self._trained_on = (model.ckpt or {}).get("train_args") or {}
        return self._complete(model.model, model.task)

    def _complete(self, net: Any, task: str) -> Module:
        """The network with the output of its task: candidates, or scores before the softmax."""
        head = net.model[-1]
        is_yolo = isinstance(head, self._library.nn.modules.Detect)
        if task not in _TASKS or (is_yolo != (_TASKS[task] == DETECTION)):
            kind = type(head).__name__
            raise self._error(f"has a head for {task} ({kind}), but YOLO's {', '.join(_TASKS)} are known")
        net.task = task
        if is_yolo and getattr(head, "one2one_cv2", None) is not None:
            head.end2end = True
            head.postprocess = lambda candidates, *_: candidates  # all, not the best in order
        net.register_forward_hook(_candidates if is_yolo else _logits)
        return net


def _candidates(net: Any, inputs: Any, output: Any) -> Candidates:
    """The candidates before non-maximum suppression, or those of the head that needs none."""
    while not isinstance(output, Tensor):
        output = output[0]
    head = net.model[-1]
    candidates = YoloOutput(head.nc, has_objectness=False, is_transposed=head.end2end)(net, inputs, output)
    if not head.end2end:
        return candidates
    return candidates._replace(boxes=output[..., :4].detach(), overlap=None)


def _logits(_net: Module, _inputs: Any, output: Any) -> Tensor:
    if isinstance(output, tuple):
        return output[1]
    return output


def _is_state_dict(file: str) -> bool:
    with contextlib.suppress(ConfigurationError):
        return bool(read_checkpoint(Path(file)))
    return False


@contextlib.contextmanager
def _restoring() -> Iterator[None]:
    """Set what Ultralytics reads when it is imported, and restore what it then replaces for the whole process.

    Settings that the environment has come first.
    """
    before = {**os.environ}
    image_open = Image.open
    torch_save = torch.save
    os.environ.update({**_SETTINGS, **before})
    try:
        with np.printoptions():
            yield
    finally:
        Image.open = image_open
        torch.save = torch_save
        os.environ.clear()
        os.environ.update(before)
