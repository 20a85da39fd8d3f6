"""NIfTI volumes, ``.nii`` and ``.nii.gz``; their axes are read as (z, y, x), and a fourth one as channels."""

import gzip
import math
import zlib
from pathlib import Path
from typing import Any

from ebcli.errors import ImageError
from ebcli.files.contents import Contents
from ebcli.files.coordinates import Affine
from ebcli.files.images import File, opened
from ebcli.files.media.array import Arrays, Data
from ebcli.files.media.medium import register
from ebcli.imports import import_optional
from ebcli.nouns.input_spec import InputSpec

_GZIP = b"\x1f\x8b"
_HEADER = 540  # bytes, of the longer version
_MOST_BEFORE = 1 << 26  # bytes, of the header and what is between it and the values


class Nifti(Arrays):
    """A volume."""

    network = "a network for volumes, such as --model FILE.py:FACTORY"

    def has_suffix(self, path: Path) -> bool:
        return path.name.lower().endswith((".nii", ".nii.gz"))

    def load(self, file: File, spec: InputSpec) -> Data:
        nibabel = import_optional("nibabel")
        with opened(file) as content:
            is_packed = content.read(2) == _GZIP
            content.seek(0)
            try:
                return self._volume(Contents(gzip.GzipFile(fileobj=content) if is_packed else content), nibabel)
            except (OSError, EOFError, zlib.error) as error:
                raise ImageError("it is truncated, or broken") from error

    def _volume(self, stream: Contents, nibabel: Any) -> Data:
        start = stream.read(_HEADER)
        kinds = nibabel.Nifti1Header, nibabel.Nifti2Header
        kind = next((kind for kind in kinds if kind.may_contain_header(start)), None)
        if kind is None:
            raise ImageError("it is no NIfTI file, or its header is broken")
        # without extensions, of which each can have any size
        header = kind(start[: kind.template_dtype.itemsize], check=False)
        shape, dtype = header.get_data_shape()[::-1], header.get_data_dtype()
        while len(shape) > 3 and shape[0] == 1:
            shape = shape[1:]
        self.check(shape, dtype)
        stream.most = min(header.get_data_offset(), _MOST_BEFORE) + math.prod(shape) * dtype.itemsize
        values = header.data_from_fileobj(stream).T.reshape(shape)
        return Data(values if len(shape) == 4 else values[None], None, Affine(header.get_best_affine()))


register(Nifti("DHW"))
