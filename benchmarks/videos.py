"""How fast a video is explained, beside the same frames that are in memory already: frames per second, and their ratio.

    python benchmarks/videos.py [SECONDS] [--model NAME] [--device NAME]

Both take turns, so that a busy machine slows both down.
"""

import argparse
import tempfile
from pathlib import Path
from time import perf_counter

import av
import numpy as np
from PIL import Image

from ebcli.files.media.film import SAMPLE
from ebcli.files.sink import OneFile
from ebcli.run import engine
from ebcli.run.plan import RunPlan
from ebcli.run.reading import NetworkInput

SIZE = 640, 480
RATE = 25
ROUNDS = 2


def write_video(path: Path, photo: Path, seconds: float) -> None:
    """A video in which a photo moves."""
    width, height = SIZE
    image = Image.open(photo).convert("RGB").resize((width * 5 // 4, height * 5 // 4))
    with av.open(path, "w") as container:
        stream = container.add_stream("libx264", rate=RATE, options={"preset": "veryfast"})
        stream.width, stream.height = SIZE
        stream.pix_fmt = "yuv420p"
        for number in range(round(seconds * RATE)):
            left = round((0.5 + 0.5 * np.sin(number / 40)) * width / 4)
            top = round((0.5 + 0.5 * np.cos(number / 60)) * height / 4)
            frame = image.crop((left, top, left + width, top + height))
            container.mux(stream.encode(av.VideoFrame.from_image(frame)))
        container.mux(stream.encode())


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seconds", nargs="?", type=float, default=20.0)
    parser.add_argument("--model", default="efficientnet_lite0")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--photo", type=Path, default=Path("sample_images/chelsea.jpg"))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        video = Path(folder, "video.mp4")
        write_video(video, arguments.photo, arguments.seconds)
        values = {"images": (video,), "model": arguments.model, "device": arguments.device}
        target = Path(folder, "out.mp4")
        plan = RunPlan.from_values(**values, output=target)
        work = engine.run(plan, OneFile(target, plan.output.format, overwrite=True))
        explainer = work.explainer
        assert explainer is not None
        film = work.reader.open(work.sources[0])
        batch = [NetworkInput(pixels=pixels, size=SIZE) for pixels in film.sample]
        asked, _ = explainer.for_film(batch)
        batch = (batch * (1 + explainer.batch_size // SAMPLE))[: explainer.batch_size]
        asked.explain(batch)  # warm
        count = round(arguments.seconds * RATE)
        memory = file = 0.0
        for _ in range(ROUNDS):
            start = perf_counter()
            for _ in range(max(1, count // len(batch) // 2)):
                asked.explain(batch)
            memory += (perf_counter() - start) / (max(1, count // len(batch) // 2) * len(batch))
            start = perf_counter()
            (record,) = work.results
            assert record.film is not None and record.film["frames"] == count, record
            file += (perf_counter() - start) / count
        print(f"{ROUNDS / memory:.1f} frames/s from memory, {ROUNDS / file:.1f} from a video", end="")
        print(f" of {SIZE[0]} x {SIZE[1]} pixels: ratio {memory / file:.2f}")


if __name__ == "__main__":
    main()
