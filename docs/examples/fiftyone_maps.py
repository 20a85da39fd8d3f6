"""Show the maps of a run in FiftyOne, as heatmaps over the photos.

eb-saliency photos --raw --top-k 3 -o maps
python fiftyone_maps.py maps
"""

import json
import sys
from pathlib import Path

import fiftyone as fo
import numpy as np


def samples(directory):
    """One sample per image of a run with --raw and one layer, with a heatmap per class."""
    latest = {}
    for line in Path(directory, "records.jsonl").read_text().splitlines():
        record = json.loads(line)
        if record["status"] == "done" and record["output"]:
            latest[record["place"]] = record
    for record in latest.values():
        with np.load(record["output"][-1]) as raw:
            width, height = raw["image_size"]
            left, top, right, bottom = raw["crop"].round().astype(int)
            maps, names, classes = raw["maps"], raw["names"], raw["classes"]
        sample = fo.Sample(filepath=str(Path(record["input"]).absolute()))
        for values, name, index in zip(maps, names, classes, strict=True):
            # a heatmap covers its whole image, but the network saw only the crop
            heatmap = np.zeros((height, width), np.float32)
            y, x = np.arange(max(top, 0), min(bottom, height)), np.arange(max(left, 0), min(right, width))
            rows = (y - top) * values.shape[0] // (bottom - top)
            columns = (x - left) * values.shape[1] // (right - left)
            heatmap[np.ix_(y, x)] = np.maximum(values, 0)[np.ix_(rows, columns)]
            sample[str(name or index).replace(" ", "_")] = fo.Heatmap(map=heatmap, range=[0, float(heatmap.max())])
        yield sample


if __name__ == "__main__":
    dataset = fo.Dataset()
    dataset.add_samples(samples(sys.argv[1]))
    fo.launch_app(dataset).wait()
