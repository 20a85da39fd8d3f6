"""The building blocks of random networks: layers, shortcuts, gates, attention and what moves values about."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

ACTIVATIONS = [
    (F.relu, torch.relu, torch.relu_, lambda y: F.relu(y, inplace=True)),
    (F.relu6, F.relu6, F.relu6, lambda y: F.relu6(y, inplace=True)),
    (lambda y: F.leaky_relu(y, 0.2), lambda y: F.leaky_relu(y, negative_slope=0.2), lambda y: F.leaky_relu_(y, 0.2)),
    (torch.tanh, Tensor.tanh, torch.tanh_, Tensor.tanh_),
    (torch.sigmoid, Tensor.sigmoid, torch.sigmoid_, Tensor.sigmoid_),
    (F.silu, nn.SiLU(), lambda y: F.silu(y, inplace=True)),
    (F.gelu, nn.GELU(approximate="tanh")),
    (F.hardswish, nn.Hardswish(), lambda y: F.hardswish(y, inplace=True)),
    (F.elu, nn.ELU(), F.elu_),
    (F.softplus, nn.Softplus()),
    (F.mish, lambda y: F.mish(y, inplace=True)),
    (lambda y: F.hardtanh(y, 0.0, 6.0), lambda y: y.clamp(0, 6), lambda y: y.clamp_(0, 6)),
    (lambda y: y.clamp(min=0), lambda y: torch.clamp_min(y, 0)),
]
SWITCHES = [torch.sigmoid, Tensor.sigmoid, F.hardsigmoid, lambda y: y.softmax(1), lambda y: F.relu6(y + 3) / 6]
SAME = [
    lambda y: F.dropout(y, 0.5, False), lambda y: nn.Identity()(y), lambda y: y.contiguous(), lambda y: y.clone(),
    lambda y: F.dropout1d(y, 0.2, False) if y.ndim == 3 else y, lambda y: y.to(torch.float64), lambda y: y.double(),
]  # fmt: skip


class Blocks:
    """Methods that append nodes; each takes and returns the number of a node."""

    def pick(self, *choices):
        return self.random.choice(choices)

    def chance(self, p=0.5):
        return self.random.random() < p

    def shape(self, x):
        return tuple(self.values[x].shape)

    def sample(self):
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
            blocks = [self.layer, self.shortcut, self.moved, self.gated, self.scaled, self.normed, self.mixed]
            if self.layout == "image":
                blocks += [self.layer, self.pooled, self.pooled, self.to_tokens, self.densely]
            if self.layout == "tokens":
                blocks += [self.attention, self.attention, self.prefixed, self.glu, self.to_image]
            x = self.pick(*blocks)(x)
        self.head(x, classes)

    # layers with weights

    def weights(self, *shape):
        w = self.draw(*shape) / math.sqrt(math.prod(shape[1:]))
        return w.abs() * self.pick(1, -1) if self.chance(0.08) else w

    def bias(self, size):
        return self.draw(size) * 0.3 if self.chance(0.7) else None

    def weighted(self, x, out=None):
        if self.layout in ("image", "sequence"):
            return self.transposed(x, out) if self.chance(0.15) else self.convolution(x, out)
        return self.linear(x, out)

    def convolution(self, x, out=None, stride=1):
        channels, *space = self.shape(x)[1:]
        size = min(self.pick(1, 2, 3, 3), *space)
        groups = channels if self.chance(0.15) and out is None else 1
        out = channels if groups > 1 else out or self.pick(2, 3, 4)
        conv = F.conv2d if len(space) == 2 else F.conv1d
        options = {"stride": stride, "padding": self.pick(0, size // 2), "groups": groups}
        weight, bias = self.weights(out, channels // groups, *[size] * len(space)), self.bias(out)
        return self.add(
            "weighted", (x,), lambda s, y: conv(y, s.weight, getattr(s, "bias", None), **options), affine=True,
            weight=weight, **({} if bias is None else {"bias": bias}),
            linear=lambda a: conv(a, weight, None, **options), channel=1,
        )  # fmt: skip

    def transposed(self, x, out=None):
        channels, *space = self.shape(x)[1:]
        out = out or self.pick(2, 3)
        conv = F.conv_transpose2d if len(space) == 2 else F.conv_transpose1d
        options = {"stride": self.pick(1, 2) if max(space) < 5 else 1, "padding": self.pick(0, 1)}
        weight, bias = self.weights(channels, out, *[2] * len(space)), self.bias(out)
        if min(space) < 3:
            options["padding"] = 0
        return self.add(
            "weighted", (x,), lambda s, y: conv(y, s.weight, getattr(s, "bias", None), **options), affine=True,
            weight=weight, **({} if bias is None else {"bias": bias}),
            linear=lambda a: conv(a, weight, None, **options), channel=1,
        )  # fmt: skip

    def linear(self, x, out=None):
        width = self.shape(x)[-1]
        out = out or self.pick(3, 4, 6)
        weight, bias = self.weights(out, width), self.bias(out)
        if bias is None and self.chance():
            spelled = self.pick(
                lambda s, y: y @ s.weight.T,
                lambda s, y: torch.matmul(y, s.weight.mT),
                lambda s, y: torch.einsum("...i,oi->...o", y, s.weight),
                lambda s, y: y @ s.weight.to(y).T,
            )
        else:
            spelled = lambda s, y: F.linear(y, s.weight, getattr(s, "bias", None))  # noqa: E731
        return self.add(
            "weighted", (x,), spelled, affine=True, weight=weight, **({} if bias is None else {"bias": bias}),
            linear=lambda a: F.linear(a, weight), channel=-1,
        )  # fmt: skip

    # what stands behind a layer

    def batch_norm(self, x):
        size = self.shape(x)[1]
        if self.affine[x] is None:
            return x
        facts = {
            "gamma": (self.draw(size).abs() + 0.2) * self.draw(size).sign(), "beta": self.draw(size) * 0.5,
            "mean": self.draw(size) * 0.4, "var": self.draw(size).abs() + 0.3,
        }  # fmt: skip
        if self.chance(0.3):
            facts["gamma"].abs_()
        # a second one behind the first is nobody's case
        return self.add(
            "batch_norm", (x,), lambda s, y: F.batch_norm(y, s.mean, s.var, s.gamma, s.beta),
            affine=None if self.affine[x] else False, **facts,
        )  # fmt: skip

    def activation(self, x):
        spellings = self.pick(*ACTIVATIONS)
        in_place = [f for f in spellings if self.overwrites(f)]
        allowed = spellings if self.fresh[x] else [f for f in spellings if f not in in_place]
        f = self.pick(*allowed)
        return self.add("pass", (x,), lambda s, y: f(y), value=spellings[0])

    @staticmethod
    def overwrites(f):
        probe = torch.full((1,), 0.5)
        version = probe._version
        f(probe)
        return probe._version != version

    def same(self, x):
        f = self.pick(*SAME)
        return self.add(
            "move", (x,), lambda s, y: f(y), affine=self.affine[x], fresh=self.fresh[x], move=lambda y: y, folds=True
        )

    def shifted(self, x):
        """A constant added, spelled in one of many ways, or what the signal is subtracted from."""
        if self.affine[x] is None:
            return x
        shape = [size if axis == 1 else 1 for axis, size in enumerate(self.shape(x))]
        c, value = self.draw(*shape) * 0.4, self.pick(0.5, -0.3)
        spelled = self.pick(
            lambda s, y: y + s.c, lambda s, y: s.c + y, lambda s, y: y.add(s.c), lambda s, y: y + s.c.expand_as(y),
            lambda s, y: y + s.c.to(y), lambda s, y: y + s.c.type_as(y) * torch.ones_like(y),
            lambda s, y: torch.add(y, s.c * y.new_ones(y.shape)), lambda s, y: y - (-s.c), lambda s, y: y.sub(-s.c),
            *([lambda s, y: y.add_(s.c), lambda s, y: y.__iadd__(s.c)] if self.fresh[x] else []),
        )  # fmt: skip
        if self.chance(0.2):
            c = torch.full((1,), value, dtype=torch.float64)
            spelled = self.pick(
                lambda s, y: y + value,
                lambda s, y: y + torch.full_like(y, value),
                lambda s, y: y.new_full(y.shape, value) + y,
            )
        if self.chance(0.2):
            spelled = self.pick(lambda s, y: s.c - y, lambda s, y: torch.rsub(y, s.c), lambda s, y: -y + s.c)
            return self.add("shift", (x,), spelled, affine=None if self.affine[x] else False, c=c, sign=-1)
        return self.add("shift", (x,), spelled, affine=self.affine[x], c=c, sign=1)

    def layer(self, x):
        x = self.weighted(x)
        for _ in range(2):
            if self.chance(0.25):
                x = self.same(x)
        if self.chance(0.15):
            x = self.reshaped_norm(x)
        elif self.chance(0.5):
            x = self.batch_norm(x)
        elif self.chance(0.3):
            x = self.shifted(x)
        if self.chance(0.15):
            x = self.same(x)
        return self.activation(x) if self.chance(0.8) else x

    def reshaped_norm(self, x):
        """A batch norm over the channels of another layout."""
        if self.layout == "image":
            height, width = self.shape(x)[2:]
            flat = self.add(
                "move", (x,), lambda s, y: y.flatten(2), affine=True, move=lambda y: y.flatten(2), folds=True
            )
            back = lambda y: y.unflatten(2, (height, width))  # noqa: E731
        elif self.layout == "tokens":
            batch, tokens = self.shape(x)[:2]
            flat = self.add(
                "move", (x,), lambda s, y: y.flatten(0, 1), affine=True, move=lambda y: y.flatten(0, 1), folds=True
            )
            back = lambda y: y.unflatten(0, (batch, tokens))  # noqa: E731
        else:
            return self.batch_norm(x)
        normed = self.batch_norm(flat)
        return self.add("move", (normed,), lambda s, y: back(y), affine=None, fresh=False, move=back, folds=True)

    # one input, one output

    def normed(self, x):
        axes, width = len(self.shape(x)), self.shape(x)[-1]
        if self.layout in ("image", "sequence"):
            f = self.pick(
                lambda y: F.group_norm(y, 1),
                lambda y: F.instance_norm(y) * 1.0,
                lambda y: F.normalize(y, dim=1),
                lambda y: F.local_response_norm(y, 3, 0.5) if axes > 2 else y,
            )
        else:
            f = self.pick(
                lambda y: F.layer_norm(y, (width,)), lambda y: F.rms_norm(y, (width,)), lambda y: F.softmax(y, -1)
            )
        return self.add("pass", (x,), lambda s, y: f(y), value=f)

    def scaled(self, x):
        """A scale for each channel, or for all."""
        at = 1 if self.layout in ("image", "sequence") else -1
        shape = [1] * len(self.shape(x))
        shape[at] = self.shape(x)[at]
        c = self.draw(*shape) if self.chance() else torch.full((1,), self.pick(0.5, -2.0), dtype=torch.float64)
        c = c + 0.1 * c.sign()
        spelled = self.pick(
            lambda s, y: y * s.c, lambda s, y: s.c * y, lambda s, y: y.mul(s.c), lambda s, y: y / (1 / s.c)
        )
        if self.fresh[x] and self.chance(0.3):
            spelled = lambda s, y: y.mul_(s.c)  # noqa: E731
        return self.add("scale", (x,), spelled, affine=None if self.affine[x] is not False else False, c=c)

    # several inputs

    def branch(self, x):
        """Something of the same shape as x, made from it."""
        at = 1 if self.layout in ("image", "sequence") else -1
        channels = self.shape(x)[at]
        y = self.activation(self.layer(x)) if self.chance(0.3) and self.layout in ("tokens", "vector") else x
        if self.layout in ("image", "sequence"):
            space = self.shape(y)[2:]
            size = self.pick(1, 3) if min(space) > 2 else 1
            conv = F.conv2d if len(space) == 2 else F.conv1d
            weight, bias = self.weights(channels, channels, *[size] * len(space)), self.draw(channels) * 0.2
            y = self.add(
                "weighted", (y,), lambda s, v: conv(v, s.weight, s.bias, padding=size // 2), affine=True,
                weight=weight, bias=bias, linear=lambda a: conv(a, weight, None, padding=size // 2), channel=1,
            )  # fmt: skip
        else:
            y = self.linear(y, channels)
        if self.chance(0.5):
            y = self.batch_norm(y)
        if self.chance(0.3):
            y = self.activation(y)
        if self.chance(0.2):
            y = self.scaled(y)
        return self.same(y) if self.chance(0.2) else y

    def shortcut(self, x):
        y = self.branch(x)
        other = self.branch(x) if self.chance(0.2) else x
        spellings = [
            (lambda s, a, b: a + b, (1, 1)), (lambda s, a, b: b + a, (1, 1)), (lambda s, a, b: a - b, (1, -1)),
            (lambda s, a, b: torch.add(a, b, alpha=0.5), (1, 0.5)), (lambda s, a, b: a.sub(b, alpha=2), (1, -2)),
            (lambda s, a, b: torch.rsub(a, b), (-1, 1)),
        ]  # fmt: skip
        if self.fresh[y]:
            spellings += [
                (lambda s, a, b: a.__iadd__(b), (1, 1)), (lambda s, a, b: a.add_(b), (1, 1)),
                (lambda s, a, b: a.sub_(b), (1, -1)), (lambda s, a, b: a.add_(b, alpha=-0.5), (1, -0.5)),
            ]  # fmt: skip
        run, scales = self.pick(*spellings)
        total = self.add("sum", (y, other), run, scales=scales)
        return self.activation(total) if self.chance() else total

    def gated(self, x):
        """Squeeze-excitation: a gate for each channel, or one of the signal's own shape."""
        if self.layout == "vector" or self.chance(0.2):
            gate = self.linear(x, self.shape(x)[-1])
            gate = self.switch(gate)
        else:
            image = self.layout in ("image", "sequence")
            dims = tuple(range(2, len(self.shape(x)))) if image else (1,)
            mean = self.add("average", (x,), lambda s, y: y.mean(dims), linear=lambda y: y.mean(dims))
            channels = self.shape(mean)[1]
            hidden = self.activation(self.linear(mean, 3))
            gate = self.switch(self.linear(hidden, channels))
            wide = self.pick(
                lambda y: y.reshape(len(y), channels, *[1] * len(dims)) if image else y[:, None],
                lambda y: y[(..., *[None] * len(dims))] if image else y.unsqueeze(1),
            )
            gate = self.add("move", (gate,), lambda s, y: wide(y), fresh=False, move=wide)
        run = self.pick(
            lambda s, a, g: a * g, lambda s, a, g: g * a, lambda s, a, g: a.mul(g), lambda s, a, g: torch.mul(g, a),
            lambda s, a, g: a * g.expand_as(a), lambda s, a, g: a * F.dropout(g, 0.1, False),
        )  # fmt: skip
        return self.add("gated", (x, gate), run)

    def switch(self, x):
        f = self.pick(*SWITCHES[:4])
        return self.add("pass", (x,), lambda s, y: f(y), value=f)

    def glu(self, x):
        wide = self.linear(x, 2 * self.pick(2, 3))
        half = self.shape(wide)[-1] // 2
        first, second = (
            self.add("move", (wide,), (lambda s, y, i=i: y.chunk(2, -1)[i]), fresh=False, affine=None,
                     move=lambda y, i=i: y[..., i * half : (i + 1) * half])
            for i in (0, 1)
        )  # fmt: skip
        act = self.pick(F.silu, F.gelu, torch.sigmoid, F.relu)
        gate = self.add("pass", (second,), lambda s, y: act(y), value=act)
        return self.add("gated", (first, gate), self.pick(lambda s, a, g: a * g, lambda s, a, g: g * a))

    def mixed(self, x):
        """The larger of two, one or the other by a mask, or some channels overwritten."""
        y = self.branch(x)
        kind = self.pick("maximum", "where", "write", "masked")
        if kind == "maximum":
            return self.add(
                "maximum", (x, y), self.pick(lambda s, a, b: torch.maximum(a, b), lambda s, a, b: torch.max(a, b))
            )
        mask = self.draw(*self.shape(x)[1:]) > 0
        if kind == "where":
            pick = lambda a, b: torch.where(mask, a, b)  # noqa: E731
            return self.add(
                "move", (x, y), lambda s, a, b: torch.where(s.mask, a, b), affine=None, move=pick, mask=mask
            )
        if kind == "masked":
            return self.add(
                "move", (y,), lambda s, a: a.masked_fill(s.mask, 0.0), affine=None, mask=mask,
                move=lambda a: torch.where(mask, -1 if a.dtype == torch.long else 0.0, a),
            )  # fmt: skip
        if not self.fresh[y]:
            return y

        def write(s, a, b):
            a[:, 1:] = b[:, 1:]
            return a

        return self.add("move", (y, x), write, affine=None, move=lambda a, b: torch.cat([a[:, :1], b[:, 1:]], 1))

    # what moves values about

    def moved(self, x):
        axis = self.random.randrange(1, len(self.shape(x)))
        size = self.shape(x)[axis]
        last = len(self.shape(x)) - 1
        moves = [
            (lambda y: y.flip(axis), True), (lambda y: y.roll(1, axis), True), (lambda y: torch.roll(y, -1, axis), True),
            (lambda y: torch.cat([y, y.flip(axis)], axis), False), (lambda y: y.repeat_interleave(2, axis), False),
            (lambda y: torch.cat(y.chunk(2, axis)[::-1], axis), True),
            (lambda y: torch.stack(y.unbind(axis), axis), True), (lambda y: y.transpose(1, last).contiguous().transpose(1, last), True),
        ]  # fmt: skip
        if size > 2:
            moves += [(lambda y: y.narrow(axis, 1, size - 1), False), (lambda y: y.split(size - 1, axis)[0], False)]
        if self.layout == "image":
            moves += [
                (lambda y: y.mT, True),
                (lambda y: y.permute(0, 1, 3, 2), True),
                (lambda y: y[..., ::2, :], False),
            ]
        f, _ = self.pick(*moves)
        grown = math.prod(self.shape(x)) > 150
        if grown:
            f = moves[0][0]
        return self.add(
            "move", (x,), lambda s, y: f(y), affine=None if self.affine[x] is not False else False, fresh=False, move=f
        )

    def pooled(self, x):
        space = self.shape(x)[2:]
        if min(space) < 2:
            return self.moved(x)
        if self.chance(0.4):
            size = self.pick(2, min(3, *space))
            pool = lambda y: F.max_pool2d(y, size, 1 if min(space) < 4 else 2, return_indices=True)  # noqa: E731
            run = self.pick(lambda s, y: pool(y)[0], lambda s, y: F.max_pool2d(y, size, 1 if min(space) < 4 else 2))
            return self.add("max_pool", (x,), run, pool=pool)
        f = self.pick(
            lambda y: F.avg_pool2d(y, 2, 1), lambda y: F.avg_pool2d(y, 2, padding=1, count_include_pad=False),
            lambda y: F.adaptive_avg_pool2d(y, 2), lambda y: F.interpolate(y, scale_factor=0.5, mode="nearest"),
            lambda y: F.interpolate(y, size=(3, 3), mode="bilinear", align_corners=True),
            lambda y: F.interpolate(y, size=(4, 4), mode="bilinear"), lambda y: F.avg_pool2d(F.pad(y, (1, 0, 0, 1)), 2, 1),
        )  # fmt: skip
        return self.add("average", (x,), lambda s, y: f(y), linear=f)

    def densely(self, x):
        """As in DenseNet: some channels more, and a norm of all; or padding."""
        y = self.activation(self.layer_of(x, 2))
        both = self.add("move", (x, y), lambda s, a, b: torch.cat([a, b], 1), affine=None if self.affine[x] is not False else False,
                        move=lambda a, b: torch.cat([a, b], 1))  # fmt: skip
        if self.affine[both] is False and self.chance():
            both = self.activation(self.batch_norm(both))
        if self.chance(0.3) and max(self.shape(both)[2:]) < 6:
            value = self.pick(0.0, 0.7)
            both = self.add("move", (both,), lambda s, a: F.pad(a, (1, 0, 0, 1), value=value), affine=None,
                            move=lambda a: F.pad(a, (1, 0, 0, 1), value=-1 if a.dtype == torch.long else value))  # fmt: skip
        return both

    def layer_of(self, x, out):
        channels = self.shape(x)[1]
        weight = self.weights(out, channels, 1, 1)
        return self.add("weighted", (x,), lambda s, y: F.conv2d(y, s.weight), affine=True, weight=weight,
                        linear=lambda a: F.conv2d(a, weight), channel=1)  # fmt: skip

    # tokens

    def to_tokens(self, x):
        self.layout = "tokens"
        f = lambda y: y.flatten(2).transpose(1, 2)  # noqa: E731
        if math.prod(self.shape(x)[2:]) > 16:
            x = self.add(
                "average", (x,), lambda s, y: F.adaptive_avg_pool2d(y, 3), linear=lambda y: F.adaptive_avg_pool2d(y, 3)
            )
        return self.add(
            "move", (x,), lambda s, y: f(y), affine=None if self.affine[x] is not False else False, fresh=False, move=f
        )

    def to_image(self, x):
        tokens = self.shape(x)[1]
        self.layout = "image"
        f = lambda y: y.transpose(1, 2).unflatten(2, (tokens, 1))  # noqa: E731
        if tokens % 2 == 0 and tokens > 2:
            f = lambda y: y.transpose(1, 2).unflatten(2, (2, tokens // 2))  # noqa: E731
        return self.add(
            "move", (x,), lambda s, y: f(y), affine=None if self.affine[x] is not False else False, fresh=False, move=f
        )

    def prefixed(self, x):
        """A class token in front: a constant, to which probability may go."""
        if self.shape(x)[1] > 7:
            return x
        c = self.draw(1, 1, self.shape(x)[2])
        move = lambda y: torch.cat(
            [(torch.full((len(y), 1, y.shape[2]), -1) if y.dtype == torch.long else c.expand(len(y), -1, -1)), y], 1
        )  # noqa: E731
        return self.add(
            "move", (x,), lambda s, y: torch.cat([s.c.expand(len(y), -1, -1), y], 1), affine=None, move=move, c=c
        )

    def attention(self, x):
        layout = self.pick("batch_first", "batch_first", "sequence_first", "folded")
        if self.chance(0.3) and self.shape(x)[2] % 2 == 0:
            return self.multi_head(x)
        if layout == "folded":  # a linear layer over tokens that lie in the batch
            batch, tokens = self.shape(x)[:2]
            flat = self.add(
                "move",
                (x,),
                lambda s, y: y.reshape(-1, y.shape[-1]),
                affine=None,
                fresh=False,
                move=lambda y: y.reshape(-1, y.shape[-1]),
            )
            y = self.activation(self.linear(flat))
            return self.add(
                "move",
                (y,),
                lambda s, v: v.unflatten(0, (batch, tokens)),
                fresh=False,
                move=lambda v: v.unflatten(0, (batch, tokens)),
            )
        if layout == "sequence_first":
            turned = self.add(
                "move", (x,), lambda s, y: y.transpose(0, 1), affine=None, fresh=False, move=lambda y: y.transpose(0, 1)
            )
            y = self.activation(self.linear(turned))
            return self.add("move", (y,), lambda s, v: v.transpose(0, 1), fresh=False, move=lambda v: v.transpose(0, 1))
        width, heads = 4, self.pick(1, 2)
        q, k, v = (self.split_heads(self.linear(x, width), heads) for _ in range(3))
        scale = 1 / math.sqrt(width / heads)
        mask = torch.ones(self.shape(x)[1], self.shape(x)[1]).tril().bool() if self.chance(0.3) else None
        if self.chance(0.4):
            y = self.add("sdpa", (q, k, v), lambda s, *qkv: F.scaled_dot_product_attention(*qkv, attn_mask=getattr(s, "mask", None)),
                         **({} if mask is None else {"mask": mask}))  # fmt: skip
        else:
            spelled = self.pick(
                lambda s, q, k: (q @ k.mT * scale).softmax(-1), lambda s, q, k: F.softmax(torch.matmul(q * scale, k.transpose(-1, -2)), dim=-1),
                lambda s, q, k: F.dropout(torch.einsum("bhnd,bhmd->bhnm", q, k).mul(scale).softmax(-1), 0.1, False),
            )  # fmt: skip
            weights = self.add("weights", (q, k), spelled, scale=scale)
            if mask is not None:
                cut = self.pick(
                    lambda s, a: a.masked_fill(~s.mask, 0.0),
                    lambda s, a: a * s.mask,
                    lambda s, a: torch.where(s.mask, a, 0.0),
                )
                weights = self.add("masked_weights", (weights,), cut, mask=mask)
            run = self.pick(
                lambda s, a, v: a @ v,
                lambda s, a, v: torch.matmul(a, v),
                lambda s, a, v: torch.einsum("bhnm,bhmd->bhnd", a, v),
            )
            y = self.add("attend", (weights, v), run)
        y = self.add(
            "move",
            (y,),
            lambda s, v: v.transpose(1, 2).flatten(2),
            fresh=False,
            move=lambda v: v.transpose(1, 2).flatten(2),
        )
        y = self.linear(y, self.shape(x)[2])
        return self.add("sum", (y, x), lambda s, a, b: a + b, scales=(1, 1)) if self.chance(0.7) else y

    def split_heads(self, x, heads):
        f = lambda y: y.unflatten(-1, (heads, -1)).transpose(1, 2)  # noqa: E731
        return self.add("move", (x,), lambda s, y: f(y), affine=None, fresh=False, move=f)

    def multi_head(self, x):
        width, first = self.shape(x)[2], self.chance(0.7)
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
            if self.chance(0.4):
                y = self.activation(y)
            return self.add("average", (y,), lambda s, v: v.mean((2, 3)), linear=lambda v: v.mean((2, 3)))
        if len(self.shape(x)) > 2:
            x = self.collapsed(x)
        self.layout = "vector"
        if self.chance(0.2):
            x = self.linear(x) if self.chance() else self.activation(self.batch_norm(self.linear(x)))
        y = self.linear(x, classes)
        if self.chance(0.2):
            y = self.batch_norm(y)
        elif self.chance(0.15):
            other = self.linear(x, classes)
            y = self.add("sum", (y, other), lambda s, a, b: a + b, scales=(1, 1))
        elif self.chance(0.1):
            y = self.shifted(y)
        elif self.chance(0.1):
            y = self.add("pass", (y,), lambda s, v: v.sigmoid(), value=torch.sigmoid)
        return y

    def collapsed(self, x):
        tokens = self.layout == "tokens"
        dims = (1,) if tokens else tuple(range(2, len(self.shape(x))))
        kind = self.pick("mean", "sum", "flatten", "amax", "first")
        if kind in ("mean", "sum"):
            return self.add(
                "average", (x,), lambda s, y: getattr(y, kind)(dims), linear=lambda y: getattr(y, kind)(dims)
            )
        if kind == "amax":
            return self.add("amax", (x,), lambda s, y: y.amax(dims), dims=dims)
        f = (lambda y: y[:, 0]) if kind == "first" and tokens else (lambda y: y.flatten(1))
        return self.add("move", (x,), lambda s, y: f(y), affine=None, fresh=False, move=f)
