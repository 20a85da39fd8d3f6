"""Operations on tokens (B, TOKENS, CHANNELS), each a function of the tokens and of the numbers that it draws.

Those of `MIXES` make an image's tokens of other images, too; the others treat each image as if it were alone.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

TOKENS, CHANNELS = 6, 4
HEADS = 2


class Draw:
    """Random numbers that are the same each time, whatever the batch.

    Args:
        seed: of all.
    """

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self._generator, dtype=torch.float64)

    def weight(self, outputs: int = CHANNELS, inputs: int = CHANNELS) -> Tensor:
        return self.normal(outputs, inputs) / math.sqrt(inputs)

    def order(self, count: int = TOKENS) -> Tensor:
        """A permutation."""
        return torch.randperm(count, generator=self._generator)

    def places(self, count: int = TOKENS) -> Tensor:
        """Indices, some perhaps more than once."""
        return torch.randint(0, count, (count,), generator=self._generator)


Step = Callable[[Tensor, Draw], Tensor]


def everywhere(order: Tensor, y: Tensor) -> Tensor:
    """An index of tokens for all images and channels."""
    return order[None, :, None].expand(len(y), -1, y.shape[2])


def told_apart(y: Tensor, draw: Draw) -> Tensor:
    """Tokens of which none are equal, where one wins: between two that are, rounding would choose."""
    return y * (draw.normal(*y.shape[1:]).abs() + 1)


# What moves elements


def write_slice(y: Tensor, draw: Draw) -> Tensor:
    y = y.clone()
    y[:, :1] = y[:, :1] * 2
    return y


def write_into_zeros(y: Tensor, draw: Draw) -> Tensor:
    zeros = torch.zeros_like(y)
    zeros[:, 1:].copy_(y[:, 1:])
    return zeros


def write_into_transposed(y: Tensor, draw: Draw) -> Tensor:
    half = y * 0.5
    half.transpose(0, 1)[:, :, ::2].copy_(y[:, :, ::2].transpose(0, 1))
    return half


def write_at_indices(y: Tensor, draw: Draw) -> Tensor:
    chosen = draw.order()[:2]
    zeros = y.new_zeros(y.shape)
    zeros[:, chosen] = y[:, chosen]
    return zeros


def add_in_place(y: Tensor, draw: Draw) -> Tensor:
    y = y * 1.0
    y[:, ::2] += y[:, 1::2]
    return y


def as_strided(y: Tensor, draw: Draw) -> Tensor:
    y = y.clone(memory_format=torch.contiguous_format)  # which starts where its memory starts
    return y.as_strided((len(y), TOKENS - 1, CHANNELS), (TOKENS * CHANNELS, CHANNELS, 1), CHANNELS)


def windows(y: Tensor, draw: Draw) -> Tensor:
    """As in Swin: windows lie in the batch."""
    folded = y.view(len(y), 2, TOKENS // 2, CHANNELS).flatten(0, 1)
    return F.linear(folded, draw.weight()).view(len(y), TOKENS, CHANNELS)


def heads(y: Tensor, draw: Draw) -> Tensor:
    """Heads lie before the images."""
    first = y.unflatten(2, (HEADS, -1)).permute(2, 0, 1, 3).flatten(0, 1)
    return (first * 1.5).unflatten(0, (HEADS, len(y))).permute(1, 2, 0, 3).flatten(2)


def class_token(y: Tensor, draw: Draw) -> Tensor:
    return torch.cat([draw.normal(1, 1, CHANNELS).expand(len(y), -1, -1), y], 1)


def class_token_of_tokens_first(y: Tensor, draw: Draw) -> Tensor:
    return torch.cat([draw.normal(1, 1, CHANNELS).expand(1, len(y), -1), y.transpose(0, 1)]).transpose(0, 1)


def where_beside(y: Tensor, draw: Draw) -> Tensor:
    return torch.where((draw.order() < TOKENS // 2)[:, None], y, y.flip(1))


def im2col(y: Tensor, draw: Draw) -> Tensor:
    return F.unfold(y.mT[..., None], (2, 1), padding=(1, 0)).mT


def pixel_shuffle(y: Tensor, draw: Draw) -> Tensor:
    image = y.mT.reshape(len(y), CHANNELS, 2, 3)
    return F.pixel_shuffle(image, 2).flatten(2).mT.expand(-1, -1, CHANNELS)


def max_unpool(y: Tensor, draw: Draw) -> Tensor:
    pooled, winners = F.max_pool1d(told_apart(y, draw).mT, 2, return_indices=True)
    return F.max_unpool1d(pooled, winners, 2, output_size=(TOKENS,)).mT


def channels_of_all(y: Tensor, draw: Draw) -> Tensor:
    """The memory of a batch, read in another order of axes and put back."""
    return y.permute(2, 0, 1).flatten().view(CHANNELS, len(y), TOKENS).permute(1, 2, 0)


MOVES: dict[str, Step] = {
    "index of images": lambda y, draw: y[torch.arange(len(y))],
    "index of images and tokens": lambda y, draw: y[torch.arange(len(y))[:, None], draw.order()[None]],
    "index of tokens": lambda y, draw: y[:, draw.places()],
    "index of channels": lambda y, draw: y[..., draw.order(CHANNELS)],
    "index_select": lambda y, draw: y.index_select(1, draw.places()),
    "gather": lambda y, draw: y.gather(1, everywhere(draw.order(), y)),
    "sort": lambda y, draw: told_apart(y, draw).sort(1).values,
    "topk": lambda y, draw: told_apart(y, draw).topk(TOKENS // 2, 1).values,
    "kthvalue": lambda y, draw: torch.cat([y, told_apart(y, draw).kthvalue(2, 1, keepdim=True).values], 1),
    "cummax": lambda y, draw: told_apart(y, draw).cummax(1).values,
    "amax": lambda y, draw: torch.cat([told_apart(y, draw).amax(1, keepdim=True), y], 1),
    "view of channels as tokens": lambda y, draw: y.reshape(len(y), CHANNELS, TOKENS),
    "as_strided": as_strided,
    "unfold": lambda y, draw: y.unfold(1, 2, 1).flatten(2),
    "im2col": im2col,
    "pixel_shuffle": pixel_shuffle,
    "flip of images and back": lambda y, draw: y.flip(0).tanh().flip(0),
    "flip of tokens": lambda y, draw: y.flip(1),
    "roll of images and back": lambda y, draw: F.linear(y.roll(1, 0), draw.weight()).roll(-1, 0),
    "roll of tokens": lambda y, draw: y.roll(1, 1),
    "roll of an image": lambda y, draw: y.flatten(1).roll(2, 1).view(y.shape),
    "tokens first": lambda y, draw: F.linear(y.transpose(0, 1).contiguous(), draw.weight()).transpose(0, 1),
    "flat by channels": channels_of_all,
    "windows": windows,
    "heads": heads,
    "unbind of images": lambda y, draw: torch.stack(y.unbind(0)),
    "split of images": lambda y, draw: torch.cat(y.split(1)),
    "stack of each image twice": lambda y, draw: torch.stack([y, y * 2], 1).flatten(0, 1)[1::2],
    "repeat of images": lambda y, draw: y.repeat(2, 1, 1)[: len(y)],
    "repeat_interleave": lambda y, draw: y.repeat_interleave(2, 1)[:, 1 : TOKENS + 1],
    "expand": lambda y, draw: y[:, None].expand(-1, 2, -1, -1).flatten(1, 2)[:, 2 : TOKENS + 2],
    "class token": class_token,
    "class token of tokens first": class_token_of_tokens_first,
    "pad by ones": lambda y, draw: F.pad(y, (0, 0, 0, 1), value=1.0),
    "pad of images": lambda y, draw: F.pad(y, (0, 0, 0, 0, 1, 1), value=2.0)[1:-1],
    "pad by reflection": lambda y, draw: F.pad(y.mT, (1, 0), mode="reflect").mT,
    "masked_fill": lambda y, draw: y.masked_fill((draw.order() < 1)[None, :, None], 1.0),
    "where": where_beside,
    "tril": lambda y, draw: y.tril(1),
    "index_put": lambda y, draw: y.index_put(
        (torch.arange(len(y))[:, None], draw.order()[None, :1]), y[:, :1]
    ),
    "scatter": lambda y, draw: torch.zeros_like(y).scatter(1, everywhere(draw.order(), y), y),
    "slice_scatter": lambda y, draw: y.slice_scatter(y[:, 1:] * 2, 1, 1),
    "write into a slice": write_slice,
    "write into zeros": write_into_zeros,
    "write into a transposed tensor": write_into_transposed,
    "write at indices": write_at_indices,
    "add in place": add_in_place,
    "max_unpool": max_unpool,
}

# Layers


def by_groups(y: Tensor, draw: Draw) -> Tensor:
    """One convolution of all images, with a group for each."""
    weight = draw.normal(CHANNELS, CHANNELS, 1).repeat(len(y), 1, 1)
    all_channels = y.mT.reshape(1, -1, TOKENS)
    return F.conv1d(all_channels, weight, groups=len(y)).view(len(y), CHANNELS, TOKENS).mT


def queries_keys_values(y: Tensor, draw: Draw) -> tuple[Tensor, ...]:
    return F.linear(y, draw.weight(3 * CHANNELS)).chunk(3, -1)


def attention(y: Tensor, draw: Draw) -> Tensor:
    return F.scaled_dot_product_attention(*queries_keys_values(y, draw))


def attention_of_heads(y: Tensor, draw: Draw) -> Tensor:
    q, k, v = (part.unflatten(2, (HEADS, -1)).transpose(1, 2) for part in queries_keys_values(y, draw))
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(y.shape)


def attention_by_hand(y: Tensor, draw: Draw) -> Tensor:
    q, k, v = queries_keys_values(y, draw)
    return (q @ k.mT / math.sqrt(CHANNELS)).softmax(-1) @ v


def attention_of_tokens_first(y: Tensor, draw: Draw) -> Tensor:
    q, k, v = queries_keys_values(y.transpose(0, 1), draw)
    weights = torch.einsum("qbc,kbc->qkb", q, k).softmax(1)
    return torch.einsum("qkb,kbc->qbc", weights, v).transpose(0, 1)


def attention_by_a_sum(y: Tensor, draw: Draw) -> Tensor:
    weights = (y @ y.mT).softmax(-1)
    return (y[:, None] * weights[..., None]).sum(2)


def attention_in_the_batch(y: Tensor, draw: Draw) -> Tensor:
    """As in CLIP: images and heads on one axis."""
    q, k, v = (
        part.reshape(TOKENS, len(y) * HEADS, -1).transpose(0, 1)
        for part in queries_keys_values(y.transpose(0, 1), draw)
    )
    mixed = torch.bmm(torch.bmm(q, k.mT).softmax(-1), v)
    return mixed.transpose(0, 1).reshape(TOKENS, len(y), CHANNELS).transpose(0, 1)


def batch_norm(y: Tensor, draw: Draw) -> Tensor:
    mean, variance, gamma = (
        draw.normal(CHANNELS) / 10,
        draw.normal(CHANNELS).abs() + 0.5,
        draw.normal(CHANNELS),
    )
    return F.batch_norm(y.mT, mean, variance, gamma).mT


def squeeze_excitation(y: Tensor, draw: Draw) -> Tensor:
    return y * F.linear(y.mean(1, keepdim=True), draw.weight()).sigmoid()


LAYERS: dict[str, Step] = {
    "linear": lambda y, draw: F.linear(y, draw.weight(), draw.normal(CHANNELS) / 10),
    "matmul": lambda y, draw: y @ draw.weight().T,
    "einsum": lambda y, draw: torch.einsum("btc,oc->bto", y, draw.weight()),
    "tensordot": lambda y, draw: torch.tensordot(y, draw.weight(), ([2], [1])),
    "vmap": lambda y, draw: torch.vmap(torch.matmul, (0, None))(y, draw.weight()),
    "mixture of tokens": lambda y, draw: draw.weight(TOKENS, TOKENS) @ y,
    "convolution": lambda y, draw: F.conv1d(y.mT, draw.normal(CHANNELS, CHANNELS, 3), padding=1).mT,
    "convolution by image": by_groups,
    "transposed convolution": lambda y, draw: F.conv_transpose1d(y.mT, draw.normal(CHANNELS, CHANNELS, 1)).mT,
    "residual": lambda y, draw: y + F.linear(y, draw.weight()),
    "attention": attention,
    "attention of heads": attention_of_heads,
    "attention by hand": attention_by_hand,
    "attention of tokens first": attention_of_tokens_first,
    "attention by a sum": attention_by_a_sum,
    "attention in the batch": attention_in_the_batch,
    "average pooling": lambda y, draw: F.avg_pool1d(y.mT, 2, 1).mT,
    "max pooling": lambda y, draw: F.max_pool1d(told_apart(y, draw).mT, 2, 1).mT,
    "adaptive pooling": lambda y, draw: F.adaptive_avg_pool1d(y.mT, 3).mT,
    "interpolation": lambda y, draw: F.interpolate(y.mT, TOKENS + 2, mode="linear").mT,
    "cumsum": lambda y, draw: y.cumsum(1) / TOKENS,
    "mean added": lambda y, draw: y + y.mean(1, keepdim=True),
    "index_add": lambda y, draw: torch.zeros_like(y).index_add(1, draw.places(), y),
    "index_add of images": lambda y, draw: torch.zeros_like(y).index_add(0, torch.arange(len(y)), y),
    "scatter_add": lambda y, draw: torch.zeros_like(y).scatter_add(1, everywhere(draw.places(), y), y),
    "layer norm": lambda y, draw: F.layer_norm(y, (CHANNELS,)),
    "group norm": lambda y, draw: F.group_norm(y.mT, 2).mT,
    "instance norm": lambda y, draw: F.instance_norm(y.mT).mT,
    "batch norm": batch_norm,
    "squeeze and excitation": squeeze_excitation,
}

ACTIVATIONS: dict[str, Step] = {
    "GELU": lambda y, draw: F.gelu(y),
    "ReLU": lambda y, draw: F.relu(y),
    "tanh": lambda y, draw: y.tanh(),
    "SiLU by hand": lambda y, draw: y * torch.sigmoid(y),
    "SiLU by hand, of tokens first": lambda y, draw: y * torch.sigmoid(y.transpose(0, 1)).transpose(0, 1),
}

# What makes tokens of an image of those of others


def write_last_over_first(y: Tensor, draw: Draw) -> Tensor:
    y = y.clone()
    y[0].copy_(y[-1])
    return y


def attention_across_images(y: Tensor, draw: Draw) -> Tensor:
    q, k, v = queries_keys_values(y.transpose(0, 1), draw)
    return F.scaled_dot_product_attention(q, k, v).transpose(0, 1)


def mixture_of_images(y: Tensor, draw: Draw) -> Tensor:
    return torch.einsum("btc,ab->atc", y, torch.eye(len(y), dtype=y.dtype) + 0.1)


MIXES: dict[str, Step] = {
    "one image for another": lambda y, draw: y[torch.tensor([1, 2, 2])],
    "flip of images": lambda y, draw: y.flip(0),
    "roll of images": lambda y, draw: y.roll(1, 0),
    "concatenation of others": lambda y, draw: torch.cat([y[1:], y[-1:]]),
    "mean of images": lambda y, draw: y + y.mean(0, keepdim=True),
    "maximum of images": lambda y, draw: y + y.amax(0),
    "maximum with the flipped batch": lambda y, draw: torch.maximum(y, y.flip(0)),
    "sort of images": lambda y, draw: y.sort(0).values,
    "cumsum of images": lambda y, draw: y.cumsum(0) / 3,
    "attention across images": attention_across_images,
    "batch norm in training": lambda y, draw: F.batch_norm(y.mT, None, None, training=True).mT,
    "tokens first as they lie": lambda y, draw: y.reshape(TOKENS, len(y), CHANNELS).transpose(0, 1),
    "mixture of images": mixture_of_images,
    "write of the last over the first": write_last_over_first,
}
