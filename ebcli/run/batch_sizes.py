"""How many images, clips or tiles a network gets at a time."""

from ebcli.models import LoadedModel
from ebcli.models.device import default_batch_size
from ebcli.models.keywords import VIDEO, WHOLE

_FRAMES = 16  # of a clip, which takes about as much memory as so many images


def batch_sizes(loaded: LoadedModel, chosen: int | None, device: str, total: int, in_batches: bool) -> tuple[int, int]:
    """The images of a batch, and how many clips or tiles of one image the network gets at a time.

    Args:
        loaded: the network.
        chosen: what the user chose; None for what suits the device.
        device: the device's name.
        total: the images of the run.
        in_batches: whether the network's task takes several images at a time.
    """
    is_video = loaded.task == VIDEO
    chosen = 1 if loaded.one_by_one else chosen
    is_alone = loaded.transforms.depth is not None or not (in_batches or is_video)
    usual = 1 if is_alone else default_batch_size(device)
    pieces = chosen or (max(1, usual // _FRAMES) if is_video else usual)
    # a batch is never larger than the run; of few images that differ in size, most batches would be half empty
    differ = chosen is None and loaded.transforms.fit == WHOLE
    most = 1 if is_video else min(total, max(2, total // 4)) if differ else total
    return min(chosen or usual, most), pieces
