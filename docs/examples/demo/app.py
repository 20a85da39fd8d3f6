"""A page that draws the maps of a photo's most likely classes, for Hugging Face Spaces or a machine of your own.

pip install . 'gradio>=5' && python docs/examples/demo/app.py
"""

from __future__ import annotations

from PIL import Image

import ebcli

LOADED = ebcli.load_model()


def maps(photo: Image.Image, count: float, contrastive: bool) -> list[tuple[Image.Image, str]]:
    """Overlays of the `count` most likely classes, with their names and probabilities."""
    inputs = LOADED.transforms(photo)[None]
    scores, classes = LOADED.net(inputs)[0].softmax(-1).topk(int(count))
    layer = ebcli.default_layer(LOADED)
    result = ebcli.excitation_backprop(
        LOADED.net, inputs, classes[None], layer=layer, contrastive=contrastive
    )
    return [
        (ebcli.draw_map(photo, values, LOADED.transforms), f"{LOADED.categories[index]} {score:.0%}")
        for values, index, score in zip(result.maps[0], classes.tolist(), scores.tolist(), strict=True)
    ]


if __name__ == "__main__":
    import gradio

    gradio.Interface(
        maps,
        [
            gradio.Image(type="pil"),
            gradio.Slider(1, 6, 3, step=1, label="Classes"),
            gradio.Checkbox(True, label="Contrastive"),
        ],
        gradio.Gallery(columns=3),
        title="eb-saliency",
        description="Saliency maps by Excitation Backprop: the regions that support each of the most likely classes.",
        flagging_mode="never",
    ).launch()
