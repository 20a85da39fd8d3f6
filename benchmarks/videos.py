"""How fast a video is explained, beside the same frames that are in memory already: frames per second, and their ratio.

    python -m benchmarks.videos [FRAMES] [--model NAME] [--device NAME] [--size WIDTH HEIGHT]

The frames in memory are measured before and after the video, so that a busy machine slows both down. The seconds of the
video include the 16 frames by which the command chooses the class and the color scale.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import av
import numpy as np
from PIL import Image

if TYPE_CHECKING:
    from ebcli.run.explainer import Explainer
    from ebcli.run.reading import NetworkInput

RATE = 25


def write_video(path: Path, photo: Path, size: tuple[int, int], frames: int) -> None:
    """A video in which a photo moves."""
    width, height = size
    image = Image.open(photo).convert("RGB").resize((width * 5 // 4, height * 5 // 4))
    with av.open(path, "w") as container:
        stream = container.add_stream("libx264", rate=RATE, options={"preset": "veryfast"})
        stream.width, stream.height = size
        stream.pix_fmt = "yuv420p"
        for number in range(frames):
            left = round((0.5 + 0.5 * np.sin(number / 40)) * width / 4)
            top = round((0.5 + 0.5 * np.cos(number / 60)) * height / 4)
            frame = image.crop((left, top, left + width, top + height))
            container.mux(stream.encode(av.VideoFrame.from_image(frame)))
        container.mux(stream.encode())


def explain_from_memory(explainer: Explainer, batch: list[NetworkInput], count: int) -> float:
    """The seconds per frame of the network alone, asked about batches of frames that are in memory."""
    batches = max(1, count // len(batch))
    start = perf_counter()
    for _ in range(batches):
        explainer.explain(batch)
    return (perf_counter() - start) / (batches * len(batch))


def main() -> None:
    """Measure and print."""
    # worker processes import this file, too; those of the command do without PyTorch
    from ebcli.files.media.film import Film
    from ebcli.files.sink import OneFile
    from ebcli.run import engine
    from ebcli.run.plan import RunPlan
    from ebcli.run.reading import sample_inputs

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("frames", nargs="?", type=int, default=240)
    parser.add_argument("--model", default="efficientnet_lite0")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--size", type=int, nargs=2, default=(320, 240), metavar=("WIDTH", "HEIGHT"))
    parser.add_argument("--photo", type=Path, default=Path("sample_images/chelsea.jpg"))
    arguments = parser.parse_args()
    count = arguments.frames
    with tempfile.TemporaryDirectory() as folder:
        video = Path(folder, "video.mp4")
        write_video(video, arguments.photo, arguments.size, count)
        target = Path(folder, "out.mp4")
        plan = RunPlan.from_values(
            images=(video,), model=arguments.model, device=arguments.device, output=target
        )
        work = engine.run(plan, OneFile(target, plan.output.format, overwrite=True))
        assert work.explainer is not None
        film = work.reader.open(work.sources[0])
        assert isinstance(film, Film)
        sample = sample_inputs(film)
        explainer, _ = work.explainer.for_film(sample)
        size = explainer.batch_size
        batch = (sample * (1 + size // len(sample)))[:size]
        explainer.explain(batch)  # warm
        before = explain_from_memory(explainer, batch, count // 4)
        start = perf_counter()
        (record,) = work.results
        seconds = (perf_counter() - start) / count
        after = explain_from_memory(explainer, batch, count // 4)
        assert record.film is not None and record.film["frames"] == count, record
    memory = (before + after) / 2
    width, height = arguments.size
    print(f"{1 / memory:.1f} frames/s from memory, {1 / seconds:.1f} from a video", end=" ")
    print(f"of {count} frames of {width} x {height} pixels: ratio {memory / seconds:.2f}")


if __name__ == "__main__":
    main()
