"""A program of a user, which type checkers accept."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image

import ebcli

loaded = ebcli.load_model("efficientnet_lite0", class_names=None)
photo = Image.open("coffee.jpg")
print(ebcli.__version__, ebcli.model_names())
found = ebcli.explain(loaded, photo, "espresso", layer="features.4", style="heatmap")
found.save(Path("espresso.png"), style="mask")
strengths: list[float | None] = found.strength
heat = found.heatmap((300, 200))[0]
peak = np.unravel_index(heat.argmax(), heat.shape)
for one in ebcli.explain(torch.nn.Identity(), ["a.jpg", photo, heat], target=[3, "cup"], fit="crop"):
    print(one.classes, one.boxes(threshold=0.3)[0])
result = ebcli.excitation_backprop(loaded, loaded.transforms(photo)[None], 3, ebcli.default_layer(loaded))
print(result.maps.shape, [layer.name for layer in ebcli.layers(loaded)], peak, strengths)
picture: Image.Image = ebcli.draw_map(photo, result.maps[0], style="contour")
try:
    ebcli.check_rule(torch.relu, torch.randn(3, requires_grad=True))
except (ebcli.NonFiniteError, ebcli.EbcliError) as error:
    print(error)
