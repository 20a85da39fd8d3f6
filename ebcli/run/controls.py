"""Controls of maps: noise, which tells how strong maps of nothing are, and sufficiency.

Sufficiency is how small a part of an image, in the order of its map, keeps half of the score, and in other orders.
"""

import contextlib
import os
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ebcli.datatypes.arrays import DoubleArray
from ebcli.datatypes.explanation import Box, Map, Size, Sufficiency
from ebcli.drawing.overlay import Pixels, covered_pixels, interpolate, ranks
from ebcli.errors import LayerError, OutputError
from ebcli.files.naming import sha256
from ebcli.files.sink import atomic_write
from ebcli.heads import single_tensor
from ebcli.methods.call import MethodCall, MethodMaps, class_priors
from ebcli.methods.chance import center_blob
from ebcli.methods.table import CONTRASTIVE, find_method
from ebcli.models import default_layer
from ebcli.models.keywords import OF_INPUT
from ebcli.models.running import blank, probe, strides_of_cells
from ebcli.run.maps import BatchMaps, Maps, compute_maps, priors
from ebcli.run.network_description import NetworkDescription, method_in_words
from ebcli.run.plan_parts import MapOptions
from ebcli.run.tasks.task import REGISTRY, ImageRequest, Requests, class_scores

PICTURES = 24  # of noise. With fewer, the median depends more on the seed
CLASSES = 2  # in each picture

Call = Callable[
    [Tensor, Callable[[Tensor], Tensor]], MethodCall
]  # of images, as the network gets them, and priors
_STEPS = 5  # of a bisection
# shares of the image, each 1.16 times the one before, so that small parts are told apart as well as large ones
_PARTS = np.array([round(0.01 ** (1 - step / (2**_STEPS - 1)), 4) for step in range(2**_STEPS)])
_LEAST_SCORE = 0.01  # of detections in blurred images
# Of the input's shorter side. RISE's blur of 5 pixels of 224 leaves some photos with all of their score
_BLUR = 1 / 16


def noise(shape: Sequence[int], seed: int) -> Tensor:
    """A picture (1, C, ...) of noise, whose amplitudes fall with the frequency as those of photos do (Field 1987).

    White noise excites a network so little that its maps are much weaker than any map of a photo.
    """
    white = torch.randn(1, *shape, generator=torch.Generator().manual_seed(seed))
    axes = tuple(range(2, white.ndim))
    lengths = white.shape[2:]
    ticks = [torch.fft.fftfreq(length, 1 / max(lengths)) for length in lengths]
    frequencies = torch.stack(torch.meshgrid(*ticks, indexing="ij")).square().sum(0).sqrt().clamp(min=1)
    pink: Tensor = torch.fft.ifftn(torch.fft.fftn(white, dim=axes) / frequencies, dim=axes).real
    pink = pink - pink.mean(axes, keepdim=True)
    return pink / pink.std()


def _question(network: NetworkDescription, seed: int, call: Call) -> MethodCall:
    """The call for a picture of noise, and classes to explain in it: any but those that they are contrasted with."""
    model = network.loaded
    against = network.against or ()
    # how far two classes are apart depends on both
    possible = network.possible if against else range(model.num_classes)
    free = [index for index in possible if index not in against] or [0]
    order = torch.randperm(len(free), generator=torch.Generator().manual_seed(seed))[:CLASSES].tolist()
    empty = blank(model.net, model.transforms)
    classes = torch.tensor([[free[i] for i in order]], device=empty.device)
    return call(noise(empty.shape[1:], seed).to(empty), partial(class_priors, classes))


def probe_noise(
    network: NetworkDescription, maps: MapOptions, call: Call
) -> tuple[NetworkDescription, list[BatchMaps]]:
    """The network's description after a picture of noise was explained, and its maps.

    Methods that take many passes are not tried.

    Args:
        network: the network, of which the layers and the classes are known.
        maps: the options.
        call: what methods get for an image.

    Raises:
        LayerError: a layer has no map.
        UnsupportedOpError: operations have no rule.
    """
    model = network.loaded
    question = _question(network, 0, call)
    quick = [method for method in maps.method_entries if method.passes is None]
    beside = [method for method in maps.entries_beside if method.passes is None]
    strides = {}
    words = []
    try:
        with strides_of_cells(model.net) as by_grid:
            results = probe(
                model.name, model.net, model.transforms, lambda _: compute_maps(question, quick, 1)
            )
        for method, layer, result in results:
            grid = () if layer.startswith(OF_INPUT) else tuple(result.maps.shape[-2:])
            if grid in by_grid:
                strides[layer] = by_grid[grid]
            over_cells = bool(result.special_tokens)
            words.append(
                method_in_words(
                    method, network.labels_against, joint=bool(result.joint), over_cells=over_cells
                )
            )
        compute_maps(question, beside, 1)
    except LayerError as error:
        problem = str(error)
        if ": choose" not in problem:
            problem += ": choose another layer"
        raise LayerError(f"{problem}, such as {default_layer(model)!r}") from error
    words += [
        method_in_words(method, network.labels_against)
        for method in maps.method_entries
        if method not in quick
    ]
    return replace(network, method="; ".join(dict.fromkeys(words)), strides=strides), results


def references(network: NetworkDescription, first: Sequence[BatchMaps], call: Call) -> dict[str, float]:
    """The median strength of maps of noise at each layer, to two digits.

    It is kept in the user's cache, with the maps of the first picture as the network's fingerprint: any other network,
    or other classes to contrast with, would give other maps.

    Args:
        network: the network.
        first: the maps of the first picture of noise.
        call: see ``probe_noise``.
    """
    contrastive = find_method(CONTRASTIVE)
    first_maps = [item.maps for item in first if item.method == contrastive]
    files = [*map(_cache_file, first_maps)]
    with contextlib.suppress(OSError, ValueError):
        return {layer: float(path.read_text()) for layer, path in zip(network.layers, files, strict=True)}
    pictures = [first_maps]
    for number in range(1, PICTURES):
        pictures.append([*contrastive.compute(_question(network, number, call))])
    strengths = torch.cat([torch.stack([*map(_strengths, results)]) for results in pictures], 1)
    medians = [float(f"{median:.2g}") for median in strengths.quantile(0.5, 1).tolist()]
    with contextlib.suppress(OutputError):
        for path, median in zip(files, medians, strict=True):
            with atomic_write(path) as temporary:
                temporary.write_text(str(median))
    return dict(zip(network.layers, medians, strict=True))


def _strengths(result: MethodMaps) -> Tensor:
    """The strengths (K,) of the maps of one image."""
    return result.maps[0].float().clamp(min=0).flatten(1).sum(1).cpu()


def _cache_file(result: MethodMaps) -> Path:
    """The file in which the reference of the network with these maps of the first picture is kept."""
    peaks = result.maps[0].float().flatten(1).amax(1)
    numbers = [*_strengths(result).tolist(), *peaks.tolist()]
    digits = [f"{number:.4g}" for number in numbers]  # the last digits depend on the number of threads
    name = sha256(repr((PICTURES, CLASSES, digits)).encode())
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111 - never fails
    return Path(caches, "eb-saliency", "noise", name)


def measure_sufficiency(inputs: Tensor, maps: Sequence[list[Map]], requests: Requests) -> None:
    """Test the first map of each image. Each image passes the network 23 times.

    Args:
        inputs: (B, C, H, W); those beyond the images only fill the batch.
        maps: the maps of each image; some may have none.
        requests: what is asked of each image.
    """
    indices = [i for i, image_maps in enumerate(maps) if image_maps]
    if not indices:
        return
    images = _fill(inputs[indices], inputs)
    first_maps = [maps[i][0] for i in indices]
    results = sufficiency_of(images, first_maps, [requests[i] for i in indices])
    for i, map_, sufficiency in zip(indices, first_maps, results, strict=True):
        maps[i][0] = replace(map_, sufficiency=sufficiency)


def sufficiency_of(inputs: Tensor, maps: Maps, requests: Requests) -> list[Sufficiency]:
    """Test one map of each image; for the arguments, see ``measure_sufficiency``."""
    model = requests[0].model
    task = REGISTRY[model.task]
    subjects = [map_.subject for map_ in maps]
    easy_maps = replace(requests[0].maps, score=_LEAST_SCORE, where=None)
    easy = [replace(request, maps=easy_maps) for request in requests]

    def measure(images: Tensor) -> DoubleArray:
        """The score of each subject in such images."""
        with torch.no_grad():
            outputs = task.run(images, easy)
        return np.array([*map(task.score, outputs, subjects)])  # outputs beyond the maps only fill the batch

    leaf = inputs.detach().requires_grad_()
    logits = single_tensor(model.net(leaf.clone()), "the output")  # layers may modify it in place
    starts = priors([[subject] for subject in subjects], 1, logits)[:, 0]
    (slopes,) = torch.autograd.grad(logits, leaf, starts)
    full_scores = np.array([subject.score for subject in subjects])
    if not task.has_own_pass:
        full_scores = np.array([*map(task.score, class_scores(model, logits), subjects)])
    blurry = _blur(inputs)
    orders, sizes = _orders(inputs, slopes.abs().sum(1), maps, requests)

    def first(order: Tensor, indices: NDArray[np.intp]) -> Tensor:
        """The pixels (B, 1, H, W) of a part of each image."""
        counts = np.maximum(1, np.rint(_PARTS[indices] * sizes)).astype(int)
        return order[:, None] < _fill(torch.from_numpy(counts).to(order), inputs)[:, None, None, None]

    def smallest(order: Tensor) -> NDArray[np.intp]:
        """For each image, the smallest part that keeps half of the score."""
        low = np.zeros(len(maps), int)
        high = low + len(_PARTS) - 1
        for _ in range(_STEPS):
            middle = (low + high) // 2
            is_enough = measure(torch.where(first(order, middle), inputs, blurry)) >= full_scores / 2
            low = np.where(is_enough, low, middle + 1)
            high = np.where(is_enough, middle, high)
        return high

    indices = [*map(smallest, orders)]
    scores_without = measure(torch.where(first(orders[0], indices[0]), blurry, inputs))
    names = "part", "shuffled", "center", "gradient", "score", "without", "blurred"
    values = [*_PARTS[np.stack(indices)], full_scores, scores_without, measure(blurry)]
    rows = np.stack(values, 1).tolist()
    return [Sufficiency(**dict(zip(names, row, strict=True))) for row in rows]


def _fill(values: Tensor, inputs: Tensor) -> Tensor:
    """Values (B, ...) of images for each input, of which the last ones only fill the batch."""
    return values[torch.arange(len(inputs)).clamp(max=len(values) - 1)]


def _orders(inputs: Tensor, slopes: Tensor, maps: Maps, requests: Requests) -> tuple[list[Tensor], list[int]]:
    """The ranks (B, H, W) of the pixels by the map, by it shuffled, a blob and the gradient; and how many there are."""
    height, width = inputs.shape[2:]
    blob = center_blob(height, width).numpy()
    orders = np.full((4, len(maps), height, width), height * width)  # padding comes last
    sizes = []
    for i, (map_, request) in enumerate(zip(maps, requests, strict=True)):
        generator = np.random.default_rng(zlib.crc32(inputs[i].float().cpu().numpy().tobytes()))
        region, box = _regions(map_, request, (width, height))
        left, top, right, bottom = box
        place = np.s_[top:bottom, left:right]
        cells = map_.display_values
        permutation = generator.permutation(cells.ravel()).reshape(cells.shape)
        fine = [interpolate(values, region, box) for values in (cells, permutation)]
        fine += [blob[place], slopes[i].float().cpu().numpy()[place]]
        orders[:, i, *place] = [ranks(values, generator) for values in fine]
        sizes.append(fine[0].size)
    return [_fill(torch.from_numpy(order).to(inputs.device), inputs) for order in orders], sizes


def _blur(images: Tensor) -> Tensor:
    from torchvision.transforms import functional  # takes a second to import, which other runs need not wait

    sigma = _BLUR * min(images.shape[2:])
    side = 2 * round(2 * sigma) + 1
    for kernel in ([side, 1], [1, side]):  # one axis after the other takes a fraction of the time
        images = functional.gaussian_blur(images, kernel, [sigma] * 2)
    return images


def _regions(map_: Map, request: ImageRequest, size: Size) -> tuple[Box, Pixels]:
    """What the map covers, and the pixels of the image, in a network's input of a size (width, height)."""
    region = request.crop

    def inside(place: Box) -> Box:
        return place.shift(-region.left, -region.top).rescale(region.size, size)

    return inside(map_.placement), covered_pixels(inside(Box(0, 0, *request.size)), size)
