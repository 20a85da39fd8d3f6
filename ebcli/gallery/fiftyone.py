"""The maps of a run as a dataset of FiftyOne, in its format `FiftyOneDataset`."""

import hashlib
import io
import json
import zlib
from base64 import b64encode
from pathlib import Path
from typing import Any

import numpy as np

from ebcli.drawing.overlay import fitted_size, heatmap
from ebcli.files.naming import FIFTYONE_FILES
from ebcli.files.records import latest_done
from ebcli.files.remote import url_of
from ebcli.gallery.raw_maps import SIDE, read_maps
from ebcli.nouns.explanation import Map

_LEVELS = 255  # of a heatmap, which makes it small when compressed
_ATTRIBUTES = {"id": "ObjectId", "map": "Array", "range": "HeatmapRange", "label": "String", "confidence": "Float",
               "layer": "String"}  # fmt: skip


def fiftyone_files(directory: Path, configuration: str) -> dict[Path, bytes]:
    """The files of the dataset: a sample per image that was done with a configuration and has an ``.npz`` file.

    The heatmaps of a sample are ``saliency``, ``saliency_2``, ...; each covers its image, and has its class as
    ``label``, its score as ``confidence``, and its ``layer``.

    Raises:
        OSError: there are no records.
    """
    samples, names = list[dict[str, Any]](), dict[str, None]()
    for record in latest_done(directory, configuration):
        if (found := read_maps(directory, record)) is None:
            continue
        maps = {f"saliency_{k}" if k > 1 else "saliency": one for k, one in enumerate(found[1], start=1)}
        place = url_of(Path(record.input)) or str(Path(record.input).absolute())
        sample = {"_id": _id(place), "_rand": int(_id(place)["$oid"][:8], 16) / 2**32, "_media_type": "image"}
        heatmaps = {name: {"_id": _id(place, name), **_heatmap(one, found[0])} for name, one in maps.items()}
        samples.append({**sample, "filepath": place, "tags": [], **heatmaps})
        names |= dict.fromkeys(maps)
    attributes = [_field(name, kind) for name, kind in _ATTRIBUTES.items()]
    document = {"embedded_doc_type": "fiftyone.core.labels.Heatmap", "fields": attributes}
    heatmap_fields = [_field(name, "EmbeddedDocument") | document for name in names]
    fields = [_field("id", "ObjectId"), _field("filepath", "String"), *heatmap_fields]
    # later versions migrate it
    metadata = {"version": "1.0.0", "media_type": "image", "sample_fields": fields}
    contents = [json.dumps(content).encode() for content in (metadata, {"samples": samples})]
    return dict(zip(FIFTYONE_FILES, contents, strict=True))


def _heatmap(map_: Map, size: tuple[int, int]) -> dict[str, Any]:
    small = fitted_size(size, SIDE)
    values = heatmap(map_.values, map_.placement.scaled(size, small), small, map_.is_two_sided)
    peak = float(np.abs(values).max()) or 1.0
    file = io.BytesIO()
    np.save(file, np.rint(values / peak * _LEVELS) * np.float32(peak / _LEVELS))
    content = {"base64": b64encode(zlib.compress(file.getvalue())).decode(), "subType": "00"}
    class_ = map_.subject.name or f"class {map_.subject.index}"
    about = {"label": class_, "confidence": map_.subject.score, "layer": map_.layer}
    return {
        "_cls": "Heatmap",
        "map": {"$binary": content},
        "range": [-peak if map_.is_two_sided else 0.0, peak],
        **about,
    }


def _field(name: str, kind: str) -> dict[str, Any]:
    return {"name": name, "ftype": f"fiftyone.core.fields.{kind}Field", "db_field": "_id" if name == "id" else name}


def _id(*parts: str) -> dict[str, str]:
    return {"$oid": hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]}
