"""The building blocks of random networks: layers with weights, what stands behind them, shortcuts and gates."""

import math
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# spellings of one activation; those that overwrite what they read are found out by trying
ACTIVATIONS = [
    (F.relu, torch.relu, torch.relu_, nn.ReLU(inplace=True)),
    (F.relu6, nn.ReLU6(), nn.ReLU6(inplace=True)),
    (partial(F.leaky_relu, negative_slope=0.2), nn.LeakyReLU(0.2), nn.LeakyReLU(0.2, inplace=True)),
    (torch.tanh, Tensor.tanh, torch.tanh_, Tensor.tanh_),
    (torch.sigmoid, Tensor.sigmoid, torch.sigmoid_, Tensor.sigmoid_),
    (
        F.silu,
        nn.SiLU(),
        nn.SiLU(inplace=True),
        lambda y: y / (1 + (-y).exp()),
        lambda y: torch.sigmoid(y) * y,
    ),
    (F.gelu, nn.GELU(), lambda y: 0.5 * y * (1 + torch.erf(y / math.sqrt(2)))),
    (F.hardswish, nn.Hardswish(), nn.Hardswish(inplace=True), lambda y: y * F.relu6(y + 3) / 6),
    (F.elu, nn.ELU(), F.elu_),
    (F.softplus, nn.Softplus()),
    (F.mish, nn.Mish(inplace=True)),
    (nn.Hardtanh(0.0, 6.0), lambda y: y.clamp(0, 6), lambda y: y.clamp_(0, 6)),
    (lambda y: y.clamp(min=0), lambda y: torch.clamp_min(y, 0)),
]
SWITCHES = [torch.sigmoid, Tensor.sigmoid, F.hardsigmoid, lambda y: y.softmax(1)]
SAME = [
    partial(F.dropout, p=0.5, training=False), nn.Identity(), Tensor.contiguous, Tensor.clone, Tensor.double,
    lambda y: torch.zeros_like(y).add_(y), lambda y: torch.ones_like(y).mul_(y),
    lambda y: y.to(torch.float64), lambda y: F.dropout1d(y, 0.2, False) if y.ndim == 3 else F.dropout(y, 0.2, False),
]  # fmt: skip
PRODUCTS = [
    lambda s, a, g: a * g,
    lambda s, a, g: g * a,
    lambda s, a, g: a.mul(g),
    lambda s, a, g: torch.mul(g, a),
]
SUMS = [
    (lambda s, a, b: a + b, (1, 1)), (lambda s, a, b: b + a, (1, 1)), (lambda s, a, b: a - b, (1, -1)),
    (lambda s, a, b: torch.add(a, b, alpha=0.5), (1, 0.5)), (lambda s, a, b: a.sub(b, alpha=2), (1, -2)),
    (lambda s, a, b: torch.rsub(a, b), (-1, 1)),
]  # fmt: skip
SUMS_IN_PLACE = [
    (lambda s, a, b: a.__iadd__(b), (1, 1)), (lambda s, a, b: a.add_(b), (1, 1)), (lambda s, a, b: a.sub_(b), (1, -1)),
    (lambda s, a, b: a.add_(b, alpha=-0.5), (1, -0.5)),
]  # fmt: skip
SHIFTS = [
    lambda s, y: y + s.c, lambda s, y: s.c + y, lambda s, y: y.add(s.c), lambda s, y: y + s.c.expand_as(y),
    lambda s, y: y + s.c.to(y), lambda s, y: y + s.c.type_as(y) * torch.ones_like(y), lambda s, y: y - (-s.c),
    lambda s, y: torch.add(y, s.c * y.new_ones(y.shape)), lambda s, y: y.sub(-s.c),
    lambda s, y: torch.full_like(y, 1.0) * s.c + y, lambda s, y: y + s.c.broadcast_to(y.shape),
]  # fmt: skip
SHIFTS_IN_PLACE = [lambda s, y: y.add_(s.c), lambda s, y: y.__iadd__(s.c)]
DIFFERENCES = [lambda s, y: s.c - y, lambda s, y: torch.rsub(y, s.c), lambda s, y: -y + s.c]
SCALES = [lambda s, y: y * s.c, lambda s, y: s.c * y, lambda s, y: y.mul(s.c), lambda s, y: y / (1 / s.c)]
MATRICES = [
    lambda s, y: y @ s.weight.T, lambda s, y: torch.matmul(y, s.weight.mT), lambda s, y: y @ s.weight.to(y).T,
    lambda s, y: torch.einsum("...i,oi->...o", y, s.weight),
]  # fmt: skip


class Blocks:
    """Methods that append nodes to a description; each takes and returns the number of a node."""

    def pick(self, *choices):
        return self.random.choice(choices)

    def chance(self, p=0.5):
        return self.random.random() < p

    def shape(self, x):
        return tuple(self.values[x].shape)

    def through(self, x, f, plain=None):
        """One input and one output."""
        return self.add("pass", (x,), lambda s, y: f(y), value=plain or f)

    def averaged(self, x, f):
        return self.add("average", (x,), lambda s, y: f(y), linear=f)

    def moved(self, inputs, f, run=None, *, folds=False, fresh=False, **facts):
        """Every element of the value is one of an operand's, or a constant, for which `f` puts -1 among integers."""
        inputs = (inputs,) if isinstance(inputs, int) else inputs
        affine = self.affine[inputs[0]]
        if not folds and any(self.affine[i] is not False for i in inputs):
            affine = None
        run = run or (lambda s, *values: f(*values))
        return self.add("move", inputs, run, affine=affine, fresh=fresh, move=f, folds=folds, **facts)

    def winners(self, *inputs):
        """Whether a norm behind the winners of some nodes is a part of layers; None: nobody says."""
        affine = [self.affine[i] for i in inputs]
        return None if None in affine else any(affine)

    # layers with weights

    def weights(self, *shape):
        w = self.draw(*shape) / math.sqrt(math.prod(shape[1:]))
        return w.abs() * self.pick(1, -1) if self.chance(0.08) else w

    def weighted(self, x, out=None):
        if self.layout not in ("image", "sequence"):
            return self.linear(x, out)
        return self.transposed(x, out) if self.chance(0.15) else self.convolution(x, out)

    def with_bias(self, x, layer, weight, channels):
        bias = {"bias": self.draw(channels) * 0.3} if self.chance(0.7) else {}
        return self.add(
            "weighted", (x,), lambda s, y: layer(y, s.weight, getattr(s, "bias", None)), affine=True,
            linear=lambda a: layer(a, weight, None), weight=weight, **bias,
        )  # fmt: skip

    def convolution(self, x, out=None, size=None):
        channels, *space = self.shape(x)[1:]
        padding = None if size is None else size // 2
        size = min(self.pick(1, 2, 3, 3), *space) if size is None else size
        groups = channels if self.chance(0.15) and out is None else 1
        out = channels if groups > 1 else out or self.pick(2, 3, 4)
        options = {"padding": self.pick(0, size // 2) if padding is None else padding, "groups": groups}
        conv = partial(F.conv2d if len(space) == 2 else F.conv1d, **options)
        return self.with_bias(x, conv, self.weights(out, channels // groups, *[size] * len(space)), out)

    def transposed(self, x, out=None):
        channels, *space = self.shape(x)[1:]
        out = out or self.pick(2, 3)
        conv = F.conv_transpose2d if len(space) == 2 else F.conv_transpose1d
        options = {
            "stride": self.pick(1, 2) if max(space) < 5 else 1,
            "padding": self.pick(0, 1) if min(space) > 2 else 0,
        }
        return self.with_bias(
            x, partial(conv, **options), self.weights(channels, out, *[2] * len(space)), out
        )

    def linear(self, x, out=None):
        out = out or self.pick(3, 4, 6)
        weight = self.weights(out, self.shape(x)[-1])
        if self.chance(0.7):
            return self.with_bias(x, F.linear, weight, out)
        linear = lambda a: F.linear(a, weight)  # noqa: E731
        return self.add("weighted", (x,), self.pick(*MATRICES), affine=True, weight=weight, linear=linear)

    # what stands behind a layer

    def batch_norm(self, x):
        if self.affine[x] is None:
            return x
        size = self.shape(x)[1]
        gamma = (self.draw(size).abs() + 0.2) * (1 if self.chance(0.3) else self.draw(size).sign())
        facts = {
            "beta": self.draw(size) * 0.5,
            "mean": self.draw(size) * 0.4,
            "var": self.draw(size).abs() + 0.3,
        }
        norm = lambda s, y: F.batch_norm(y, s.mean, s.var, s.gamma, s.beta)  # noqa: E731
        # a second one behind the first is nobody's case
        return self.add(
            "batch_norm", (x,), norm, affine=None if self.affine[x] else False, gamma=gamma, **facts
        )

    def activation(self, x):
        plain, *others = self.pick(*ACTIVATIONS)
        f = self.pick(plain, *(f for f in others if self.fresh[x] or not overwrites(f)))
        return self.through(x, f, plain)

    def same(self, x):
        f = self.pick(*SAME)
        return self.moved(x, lambda y: y, lambda s, y: f(y), folds=True, fresh=self.fresh[x])

    def shifted(self, x):
        """A constant added, or what the signal is subtracted from."""
        if self.affine[x] is None:
            return x
        at = [1] if self.chance(0.8) else []
        c = self.draw(*(size if axis in at else 1 for axis, size in enumerate(self.shape(x)))) * 0.4
        if self.chance(0.2):
            return self.add(
                "shift", (x,), self.pick(*DIFFERENCES), affine=None if self.affine[x] else False, c=c, sign=-1
            )
        spelled = self.pick(*SHIFTS, *(SHIFTS_IN_PLACE if self.fresh[x] else []))
        return self.add("shift", (x,), spelled, affine=self.affine[x], c=c, sign=1)

    def layer(self, x):
        x = self.weighted(x)
        while self.chance(0.25):
            x = self.same(x)
        x = self.pick(self.batch_norm, self.batch_norm, self.shifted, self.reshaped_norm, lambda y: y)(x)
        if self.chance(0.15):
            x = self.same(x)
        return self.activation(x) if self.chance(0.8) else x

    def reshaped_norm(self, x):
        """A batch norm over the channels of another layout."""
        if self.layout not in ("image", "tokens"):
            return self.batch_norm(x)
        start = 2 if self.layout == "image" else 0
        sizes = self.shape(x)[start : start + 2]
        normed = self.batch_norm(self.moved(x, lambda y: y.flatten(start, start + 1), folds=True))
        return self.moved(normed, lambda y: y.unflatten(start, sizes), folds=True)

    def normed(self, x):
        axes, width = len(self.shape(x)), self.shape(x)[-1]
        if self.layout in ("image", "sequence"):
            norms = [partial(F.group_norm, num_groups=1), partial(F.normalize, dim=1)]
            norms += [partial(F.local_response_norm, size=3, alpha=0.5)] if axes > 2 else []
        else:
            norms = [
                partial(F.layer_norm, normalized_shape=(width,)),
                partial(F.rms_norm, normalized_shape=(width,)),
            ]
            norms.append(partial(F.softmax, dim=-1))
        norm = self.pick(*norms)
        by_hand = {F.layer_norm: layer_norm, F.rms_norm: rms_norm}.get(norm.func, norm)
        if self.values[x].min() >= 0:  # what may itself be a gate, in the product by hand
            by_hand = norm
        return self.through(x, self.pick(norm, by_hand), norm)

    def scaled(self, x):
        """A scale for each channel, or for all."""
        at = self.channels()
        shape = [1] * len(self.shape(x))
        shape[at] = self.shape(x)[at] if self.chance(0.7) else 1
        c = self.draw(*shape)
        spelled = self.pick(*SCALES, *([lambda s, y: y.mul_(s.c)] if self.fresh[x] else []))
        return self.add(
            "scale",
            (x,),
            spelled,
            affine=None if self.affine[x] is not False else False,
            c=c + 0.1 * c.sign(),
        )

    def channels(self):
        return 1 if self.layout in ("image", "sequence") else -1

    # several inputs

    def branch(self, x):
        """Something of the same shape as x, made from it."""
        channels = self.shape(x)[self.channels()]
        if self.layout in ("image", "sequence"):
            y = self.convolution(x, channels, self.pick(1, 3))
        else:
            y = self.linear(self.layer(x) if self.chance(0.3) else x, channels)
        for block, p in (
            (self.batch_norm, 0.5),
            (self.activation, 0.3),
            (self.scaled, 0.2),
            (self.same, 0.2),
        ):
            if self.chance(p):
                y = block(y)
        return y

    def shortcut(self, x):
        y = self.branch(x)
        other = self.branch(x) if self.chance(0.2) else x
        run, scales = self.pick(*SUMS, *(SUMS_IN_PLACE if self.fresh[y] else []))
        total = self.add("sum", (y, other), run, scales=scales)
        return self.activation(total) if self.chance() else total

    def gated(self, x):
        """Squeeze-excitation: a gate for each channel, or one of the signal's own shape."""
        if self.values[x].min() >= 0 and self.values[x].max() <= 1:
            return self.shortcut(x)  # as good a gate itself
        if self.layout == "vector" or self.chance(0.2):
            return self.add(
                "gated", (x, self.switch(self.linear(x, self.shape(x)[-1]))), self.pick(*PRODUCTS)
            )
        image, axes = self.layout in ("image", "sequence"), len(self.shape(x)) - 2
        dims = tuple(range(2, axes + 2)) if image else (1,)
        mean = self.averaged(x, lambda y: y.mean(dims))
        gate = self.switch(self.linear(self.activation(self.linear(mean, 3)), self.shape(mean)[1]))
        shape = (2, -1, *[1] * axes) if image else (2, *[1] * axes, -1)
        gate = self.moved(gate, self.pick(lambda y: y.reshape(shape), lambda y: y.view(shape)))
        wide = [lambda s, a, g: a * g.expand_as(a), lambda s, a, g: a * F.dropout(g, 0.1, False)]
        return self.add("gated", (x, gate), self.pick(*PRODUCTS, *wide))

    def switch(self, x):
        return self.through(x, self.pick(*SWITCHES))

    def mixed(self, x):
        """The larger of two, one or the other by a mask, or some channels overwritten."""
        y = self.branch(x)
        kind = self.pick("maximum", "where", "write", "masked")
        mask = self.draw(*self.shape(x)[1:]) > 0
        if kind == "maximum":
            larger = self.pick(lambda s, a, b: torch.maximum(a, b), lambda s, a, b: a.max(b))
            return self.add("maximum", (x, y), larger, affine=self.winners(x, y))
        if kind == "where":
            return self.moved((x, y), lambda a, b: torch.where(mask, a, b), fresh=True)
        if kind == "masked":
            masked = lambda a: a.masked_fill(mask, constant(a, 0))  # noqa: E731
            return self.moved(y, masked, lambda s, a: a.masked_fill(s.mask, 0.0), fresh=True, mask=mask)

        def write(s, a, b):
            a[:, 1:] = b[:, 1:]
            return a

        together = lambda a, b: torch.cat([a[:, :1], b[:, 1:]], 1)  # noqa: E731
        return self.moved((y, x), together, write, fresh=True) if self.fresh[y] else y


def updated(value, y):
    """A constant that the signal is added to, and that no longer is one then."""
    value[:, :1].add_(y[:, :1])
    value[:, 1:] += y[:, 1:]
    return value


def layer_norm(y):
    centered = y - y.mean(-1, keepdim=True)
    return centered / (centered.square().mean(-1, keepdim=True) + 1e-5).sqrt()


def rms_norm(y):
    return y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + torch.finfo(y.dtype).eps)


def overwrites(f):
    """Whether an activation overwrites what it reads."""
    probe = torch.full((1,), 0.5)
    version = probe._version
    f(probe)
    return probe._version != version


def constant(values, value):
    """What stands for a constant: itself, or -1 where `values` are the places that elements come from."""
    return -1 if values.dtype == torch.long else value
