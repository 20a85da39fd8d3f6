"""Networks of timm (PyTorch Image Models): ``timm/resnet18``, ``timm/resnet18.tv_in1k``."""

import math
from collections.abc import Sequence
from typing import Any

from torch.nn import Module

from ebcli.datatypes.input_spec import InputSpec
from ebcli.errors import ConfigurationError, closest, import_optional
from ebcli.models.checkpoint import load_checkpoint, without_prefixes
from ebcli.models.keywords import CROP, DEFAULT, PAD, SQUASH
from ebcli.models.names import imagenet_classes
from ebcli.models.sources.base import ModelSource, fetch_errors, square_spec

_FITS = {"center": CROP, "squash": SQUASH, "border": PAD}  # by crop mode


class Timm(ModelSource):
    """A network of ``timm.list_models()``, with or without the tag of its weights.

    The networks are not listed: there are more than a thousand.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._timm = import_optional("timm")
        self._architecture, _, self._tag = name.partition(".")
        if not self._timm.is_model(self._architecture):
            hint = closest(self._architecture, self._timm.list_models()) or "timm.list_models() lists them in Python"
            raise ConfigurationError(f"timm has no model {self._architecture!r}: {hint}")
        if self._tag and self._tag not in self.weights():
            raise ConfigurationError(f"timm's {self._architecture} has no weights {self._tag!r}: {self._advice()}")

    def weights(self) -> Sequence[str]:
        full = self._timm.models.get_arch_pretrained_cfgs(self._architecture)
        return [DEFAULT, *(name.partition(".")[2] for name in full if "." in name)]

    def published(self, weights: str) -> str | None:
        full_name = super().published(weights)
        if full_name != DEFAULT:
            return full_name
        return getattr(self._timm.get_pretrained_cfg(self.name), "tag", None) or full_name

    def build(self, num_classes: int | None = None) -> Module:
        if num_classes is None and (self.headless or self._is_headless()):
            # a checkpoint's classifier needs one to be compared with
            num_classes = 0 if self.headless else len(imagenet_classes())
        return self._timm.create_model(self.name, pretrained=False, num_classes=num_classes)

    def pretrained(self, weights: str) -> Module:
        if self._is_headless() and not self.headless:
            raise ConfigurationError(
                f"timm/{self.name} has no classifier: compare pictures by --similar-to, or pass --weights FILE with one"
            )
        full_name = self._architecture
        if weights != DEFAULT:
            full_name += f".{weights}"
        options = {"num_classes": 0} if self.headless else {}
        with fetch_errors(f"the weights {weights} of timm/{self._architecture}", self._advice()):
            return self._timm.create_model(full_name, pretrained=True, **options)

    def restored(self, state: dict[str, Any], title: str) -> Module:
        if not self.headless:
            return super().restored(state, title)
        net: Any = self.build()
        network_state = net.state_dict()
        classifier = net.pretrained_cfg.get("classifier") or ()
        names = [classifier] if isinstance(classifier, str) else classifier
        heads = tuple(f"{name}." for name in names)
        by_name = without_prefixes(state, network_state)
        fitting = {key: value for key, value in by_name.items() if key in network_state or not key.startswith(heads)}
        load_checkpoint(net, fitting, title)
        return net

    def with_features(self, net: Module, weights: str) -> Module:
        return net

    def transforms(self, net: Module, weights: str) -> InputSpec:
        config = self._timm.data.resolve_data_config(model=net)
        _, height, width = config["input_size"]
        resize = math.floor(height / config["crop_pct"])  # as timm.data.create_transform rounds it
        return square_spec(f"timm/{self.name}", (height, width), resize, _FITS[config["crop_mode"] or "center"], config)

    def categories(self, net: Module, weights: str) -> Sequence[str] | None:
        subset = self._timm.data.infer_imagenet_subset(net)
        if subset is None:
            return None
        if subset == "imagenet-1k":
            return imagenet_classes()  # shorter than timm's, and the same for every source
        return self._timm.data.ImageNetInfo(subset).label_descriptions()

    def _is_headless(self) -> bool:
        return getattr(self._timm.get_pretrained_cfg(self.name), "num_classes", None) == 0

    def _advice(self) -> str:
        tags = self.weights()[1:]
        tags_advice = f"choose {', '.join(tags)}, or " if tags else ""
        return f"{tags_advice}pass --weights FILE, or --weights none for an untrained network"
