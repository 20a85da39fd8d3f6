"""Random networks from end to end: inputs, blocks of each layout, attention, and heads."""

import math

import torch
from fuzz_blocks import PRODUCTS, Blocks, constant, updated
from torch import nn
from torch.nn import functional as F

SCORES = [
    lambda s, q, k: (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1),
    lambda s, q, k: F.softmax(torch.matmul(q / q.shape[-1] ** 0.5, k.transpose(-1, -2)), dim=-1),
    lambda s, q, k: F.dropout(
        torch.einsum("bhnd,bhmd->bhnm", q, k).mul(q.shape[-1] ** -0.5).softmax(-1), training=False
    ),
]
CUTS = [
    lambda s, a: a.masked_fill(~s.mask, 0.0),
    lambda s, a: a * s.mask,
    lambda s, a: torch.where(s.mask, a, 0.0),
]
ATTEND = [
    lambda s, a, v: a @ v, lambda s, a, v: torch.matmul(a, v), lambda s, a, v: torch.einsum("bhnm,bhmd->bhnd", a, v),
]  # fmt: skip
POOLS = [
    lambda y: F.avg_pool2d(y, 2, 1), lambda y: F.avg_pool2d(y, 2, padding=1, count_include_pad=False),
    lambda y: F.adaptive_avg_pool2d(y, 2), lambda y: F.interpolate(y, scale_factor=0.5, mode="nearest"),
    lambda y: F.interpolate(y, size=(3, 3), mode="bilinear", align_corners=True),
    lambda y: F.interpolate(y, size=(4, 4), mode="bilinear"), lambda y: F.avg_pool2d(F.pad(y, (1, 0, 0, 1)), 2, 1),
]  # fmt: skip


class RandomNet(Blocks):
    """What a whole network is made of; `build` appends its nodes."""

    def sample(self):
        """An input of two samples, (2, C, H, W), (2, N, C), (2, C) or (2, C, L)."""
        self.layout = self.pick("image", "image", "tokens", "tokens", "vector", "sequence")
        sizes = {
            "image": (self.pick(2, 3), self.pick(4, 5, 6), self.pick(4, 5, 6)),
            "tokens": (self.pick(3, 4, 6), self.pick(4, 6)),
            "vector": (self.pick(4, 7),),
            "sequence": (self.pick(2, 4), self.pick(6, 9)),
        }
        x = self.draw(2, *sizes[self.layout])
        return x.abs() if self.chance(0.3) else x

    def build(self, classes):
        x = 0
        for _ in range(self.random.randint(2, 6)):
            blocks = [
                self.layer,
                self.shortcut,
                self.rearranged,
                self.gated,
                self.scaled,
                self.normed,
                self.mixed,
            ]
            if self.layout == "image":
                blocks += [self.layer, self.pooled, self.pooled, self.to_tokens, self.densely]
            if self.layout == "tokens":
                blocks += [self.attention, self.attention, self.multi_head, self.prefixed, self.glu]
                blocks += [self.to_image, self.turned]
            x = self.pick(*blocks)(x)
        self.head(x, classes)

    def rearranged(self, x):
        axis, last = self.random.randrange(1, len(self.shape(x))), len(self.shape(x)) - 1
        size = self.shape(x)[axis]
        moves = [
            lambda y: y.flip(axis), lambda y: y.roll(1, axis), lambda y: torch.cat(y.chunk(2, axis)[::-1], axis),
            lambda y: torch.stack(y.unbind(axis), axis), lambda y: updated(torch.zeros_like(y), y),
            lambda y: y.transpose(1, last).contiguous().transpose(1, last),
        ]  # fmt: skip
        if math.prod(self.shape(x)) < 150:
            moves += [lambda y: torch.cat([y, y.flip(axis)], axis), lambda y: y.repeat_interleave(2, axis)]
        if size > 2:
            moves += [lambda y: y.narrow(axis, 1, size - 1), lambda y: y.split(size - 1, axis)[0]]
        if self.layout == "image":
            moves += [lambda y: y.mT, lambda y: y.permute(0, 1, 3, 2), lambda y: y[..., ::2, :]]
        return self.moved(x, self.pick(*moves))

    # images

    def pooled(self, x):
        space = self.shape(x)[2:]
        if min(space) < 2:
            return self.rearranged(x)
        if self.chance(0.6):
            return self.averaged(x, self.pick(*POOLS))
        size, stride = self.pick(2, min(3, *space)), 1 if min(space) < 4 else 2
        pool = lambda y: F.max_pool2d(y, size, stride, return_indices=True)  # noqa: E731
        spelled = self.pick(lambda s, y: pool(y)[0], lambda s, y: F.max_pool2d(y, size, stride))
        return self.add("max_pool", (x,), spelled, affine=self.winners(x), pool=pool)

    def densely(self, x):
        """As in DenseNet: some channels more, and a norm of all; or padding."""
        both = self.moved(
            (x, self.activation(self.convolution(x, 2, 1))), lambda a, b: torch.cat([a, b], 1), fresh=True
        )
        if self.affine[both] is False and self.chance():
            both = self.activation(self.batch_norm(both))
        if self.chance(0.3) and max(self.shape(both)[2:]) < 6:
            value = self.pick(0.0, 0.7)
            both = self.moved(both, lambda a: F.pad(a, (1, 0, 0, 1), value=constant(a, value)), fresh=True)
        return both

    def to_tokens(self, x):
        self.layout = "tokens"
        if math.prod(self.shape(x)[2:]) > 16:
            x = self.averaged(x, lambda y: F.adaptive_avg_pool2d(y, 3))
        return self.moved(x, lambda y: y.flatten(2).transpose(1, 2))

    # tokens

    def to_image(self, x):
        self.layout = "image"
        tokens = self.shape(x)[1]
        size = (2, tokens // 2) if tokens % 2 == 0 and tokens > 2 else (tokens, 1)
        return self.moved(x, lambda y: y.transpose(1, 2).unflatten(2, size))

    def prefixed(self, x):
        """A class token in front: a constant, to which probability may go."""
        if self.shape(x)[1] > 7:
            return x
        c = self.draw(1, 1, self.shape(x)[2])
        prefix = lambda y: torch.cat([y.new_full((len(y), 1, y.shape[2]), -1), y], 1)  # noqa: E731
        return self.moved(
            x, prefix, lambda s, y: torch.cat([s.c.expand(len(y), -1, -1), y], 1), fresh=True, c=c
        )

    def glu(self, x):
        wide = self.linear(x, 2 * self.pick(2, 3))
        first, second = (self.moved(wide, lambda y, i=i: y.chunk(2, -1)[i]) for i in (0, 1))
        gate = self.through(second, self.pick(F.silu, F.gelu, torch.sigmoid, F.relu))
        return self.add("gated", (first, gate), self.pick(*PRODUCTS))

    def turned(self, x):
        """A layer over tokens that lie in the batch, or before it."""
        batch, tokens = self.shape(x)[:2]
        there, back = self.pick(
            (lambda y: y.reshape(-1, y.shape[-1]), lambda y: y.unflatten(0, (batch, tokens))),
            (lambda y: y.transpose(0, 1), lambda y: y.transpose(0, 1)),
        )
        return self.moved(self.activation(self.linear(self.moved(x, there))), back)

    def attention(self, x):
        tokens, heads = self.shape(x)[1], self.pick(1, 2)
        split = lambda y: y.unflatten(-1, (heads, -1)).transpose(1, 2)  # noqa: E731
        q, k, v = (self.moved(self.linear(x, 4), split) for _ in range(3))
        mask = {"mask": torch.ones(tokens, tokens).tril().bool()} if self.chance(0.3) else {}
        if self.chance(0.4):
            sdpa = F.scaled_dot_product_attention
            y = self.add(
                "sdpa", (q, k, v), lambda s, *qkv: sdpa(*qkv, attn_mask=getattr(s, "mask", None)), **mask
            )
        else:
            weights = self.add("weights", (q, k), self.pick(*SCORES))
            if mask:
                weights = self.add("masked_weights", (weights,), self.pick(*CUTS), **mask)
            y = self.add("attend", (weights, v), self.pick(*ATTEND))
        y = self.linear(self.moved(y, lambda v: v.transpose(1, 2).flatten(2)), self.shape(x)[2])
        return self.add("sum", (y, x), lambda s, a, b: a + b, scales=(1, 1)) if self.chance(0.7) else y

    def multi_head(self, x):
        width, first = self.shape(x)[2], self.chance(0.7)
        if width % 2:
            return self.attention(x)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            module = nn.MultiheadAttention(width, 2, batch_first=first).double().eval()
            nn.init.normal_(module.in_proj_bias, std=0.3)
            nn.init.normal_(module.out_proj.bias, std=0.3)

        def run(s, y):
            z = y if first else y.transpose(0, 1)
            z = s.module(z, z, z, need_weights=False)[0]
            return z if first else z.transpose(0, 1)

        return self.add("multi_head", (x,), run, affine=None, fresh=False, module=module)

    # the head

    def head(self, x, classes):
        if self.layout == "image" and self.chance(0.25):
            y = self.convolution(x, classes)
            return self.averaged(self.activation(y) if self.chance(0.4) else y, lambda v: v.mean((2, 3)))
        if len(self.shape(x)) > 2:
            x = self.collapsed(x)
        self.layout = "vector"
        if self.chance(0.2):
            x = self.layer(x)
        y = self.linear(x, classes)
        kind = self.pick("plain", "plain", "plain", "normed", "shifted", "sigmoid", "twice")
        if kind == "twice":
            return self.add("sum", (y, self.linear(x, classes)), lambda s, a, b: a + b, scales=(1, 1))
        if kind == "sigmoid":
            return self.through(y, torch.sigmoid)
        return {"plain": lambda y: y, "normed": self.batch_norm, "shifted": self.shifted}[kind](y)

    def collapsed(self, x):
        dims = (1,) if self.layout == "tokens" else tuple(range(2, len(self.shape(x))))
        kind = self.pick("mean", "sum", "flatten", "amax", "first")
        if kind in ("mean", "sum"):
            return self.averaged(x, lambda y: getattr(y, kind)(dims))
        if kind == "amax":
            return self.add("amax", (x,), lambda s, y: y.amax(dims), affine=self.winners(x), dims=dims)
        return self.moved(
            x, (lambda y: y[:, 0]) if kind == "first" and self.layout == "tokens" else lambda y: y.flatten(1)
        )
