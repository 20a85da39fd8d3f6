"""Networks of timm (PyTorch Image Models): ``timm/resnet18``, ``timm/resnet18.tv_in1k``."""

import math
from collections.abc import Sequence
from typing import Any

from torch.nn import Module

from ebcli.datatypes.input_spec import InputSpec
from ebcli.errors import ConfigurationError, closest, import_optional
from ebcli.models.checkpoint import StateDict, load_checkpoint, without_prefixes
from ebcli.models.classes import Names
from ebcli.models.keywords import CROP, DEFAULT, PAD, SQUASH
from ebcli.models.names import imagenet_classes
from ebcli.models.sources.base import ModelSource, fetch_errors

_FITS = {"center": CROP, "squash": SQUASH, "border": PAD}  # by crop mode


class Timm(ModelSource):
    """A network of ``timm.list_models()``, with or without the tag of its weights.

    The networks are not listed: there are more than a thousand.
    """

    _prefix = "timm/"

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._timm = import_optional("timm")
        self._architecture, _, self._tag = name.partition(".")
        if not self._timm.is_model(self._architecture):
            hint = closest(self._architecture, self._timm.list_models())
            hint = hint or "timm.list_models() lists them in Python"
            raise ConfigurationError(f"timm has no model {self._architecture!r}: {hint}")
        if self._tag and self._tag not in self.weights():
            problem = f"timm's {self._architecture} has no weights {self._tag!r}"
            raise ConfigurationError(f"{problem}: {self._advice()}")

    def weights(self) -> Sequence[str]:
        full = self._timm.models.get_arch_pretrained_cfgs(self._architecture)
        return [DEFAULT, *(name.partition(".")[2] for name in full if "." in name)]

    def published(self, weights: str) -> str | None:
        full_name = super().published(weights)
        if full_name != DEFAULT:
            return full_name
        return getattr(self._timm.get_pretrained_cfg(self.name), "tag", None) or full_name

    def build(self, num_classes: int | None = None) -> Module:
        if num_classes is None and self.headless:
            num_classes = 0
        elif num_classes is None and self._is_headless():
            num_classes = len(imagenet_classes())  # a checkpoint's classifier needs one to be compared with
        return self._timm.create_model(self.name, pretrained=False, num_classes=num_classes)

    def pretrained(self, weights: str) -> Module:
        if self._is_headless() and not self.headless:
            advice = "compare pictures by --similar-to, or pass --weights FILE with one"
            raise self._error(f"has no classifier: {advice}")
        full_name = self._architecture
        if weights != DEFAULT:
            full_name += f".{weights}"
        options = {}
        if self.headless:
            options["num_classes"] = 0
        with fetch_errors(f"the weights {weights} of timm/{self._architecture}", self._advice()):
            return self._timm.create_model(full_name, pretrained=True, **options)

    def restored(self, state: StateDict, title: str) -> Module:
        if not self.headless:
            return super().restored(state, title)
        net: Any = self.build()
        network_state = net.state_dict()
        classifiers = net.pretrained_cfg.get("classifier") or ()
        if isinstance(classifiers, str):
            classifiers = [classifiers]
        heads = tuple(f"{name}." for name in classifiers)
        state = without_prefixes(state, network_state)
        for key in state.keys() - network_state.keys():
            if key.startswith(heads):
                del state[key]
        load_checkpoint(net, state, title)
        return net

    def with_features(self, net: Module, weights: str) -> Module:
        return net

    def transforms(self, net: Module, weights: str) -> InputSpec:
        config = self._timm.data.resolve_data_config(model=net)
        _, *size = config["input_size"]
        resize = math.floor(size[0] / config["crop_pct"])  # as timm.data.create_transform rounds it
        fit = _FITS[config["crop_mode"] or "center"]
        return self._square_spec(size, config, resize=(resize,), fit=fit)

    def categories(self, net: Module, weights: str) -> Names:
        subset = self._timm.data.infer_imagenet_subset(net)
        if subset is None:
            return None
        if subset == "imagenet-1k":
            return imagenet_classes()  # shorter than timm's, and the same for every source
        return self._timm.data.ImageNetInfo(subset).label_descriptions()

    def _is_headless(self) -> bool:
        return getattr(self._timm.get_pretrained_cfg(self.name), "num_classes", None) == 0

    def _advice(self) -> str:
        advice = "pass --weights FILE, or --weights none for an untrained network"
        tags = self.weights()[1:]
        if tags:
            advice = f"choose {', '.join(tags)}, or {advice}"
        return advice
