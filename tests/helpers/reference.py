"""Excitation Backprop restated slowly, from the paper's definition (Zhang et al. 2016, Eq. 4, 6 to 8 and 10).

The network is traced with torch.fx, run op by op, and walked backwards op by op. A layer's weights W are read off
its exact Jacobian, so that nothing is shared with the package but PyTorch's forward functions. Contributions are the
explicit matrix z_ni = W_ni a_i, and for a neuron n with response y_n

    P(i | n) = max(s_n z_ni, 0) / sum_k max(s_n z_nk, 0),   s_n = sign(y_n)

where the units of the classifier have s = +1 for a class and s = -1 for its dual. A batch norm behind a layer is a
part of its neurons, also behind what routes values in between: s is the sign of its response, times that of its scale.
"""

import operator
from collections import defaultdict

import torch
from torch import fx, nn
from torch.nn import functional as F

WEIGHTED = {
    nn.Linear,
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
}
WEIGHTED |= {F.linear, F.conv1d, F.conv2d, F.conv_transpose2d}
AVERAGE = {
    nn.AvgPool1d,
    nn.AvgPool2d,
    nn.AvgPool3d,
    nn.AdaptiveAvgPool1d,
    nn.AdaptiveAvgPool2d,
    nn.AdaptiveAvgPool3d,
}
AVERAGE |= {
    nn.Upsample,
    F.interpolate,
    F.avg_pool2d,
    F.adaptive_avg_pool2d,
    torch.mean,
    torch.sum,
    "mean",
    "sum",
}
BATCH_NORM = {nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, F.batch_norm}
SUM = {
    operator.add,
    operator.iadd,
    operator.sub,
    operator.isub,
    torch.add,
    torch.sub,
    "add",
    "add_",
    "sub",
    "sub_",
}
PRODUCT = {operator.mul, operator.imul, operator.truediv, torch.mul, "mul", "mul_", "div"}
ONE_INPUT = {
    nn.ReLU,
    nn.ReLU6,
    nn.LeakyReLU,
    nn.ELU,
    nn.Tanh,
    nn.Sigmoid,
    nn.Hardswish,
    nn.SiLU,
    nn.GELU,
    nn.Mish,
}
ONE_INPUT |= {
    nn.Hardsigmoid,
    nn.Hardtanh,
    nn.Softplus,
    nn.PReLU,
    nn.Dropout,
    nn.Dropout2d,
    nn.Softmax,
    nn.Softsign,
}
ONE_INPUT |= {
    nn.LayerNorm,
    nn.GroupNorm,
    nn.LocalResponseNorm,
    nn.Identity,
    F.relu,
    F.normalize,
    F.softmax,
    F.silu,
}
ONE_INPUT |= {torch.relu, torch.tanh, torch.sigmoid, F.dropout, F.gelu} | BATCH_NORM
ROUTES = {
    nn.MaxPool1d,
    nn.MaxPool2d,
    nn.MaxPool3d,
    nn.AdaptiveMaxPool2d,
    nn.Flatten,
    F.max_pool2d,
    F.pad,
    torch.cat,
}
ROUTES |= {
    torch.flatten,
    operator.getitem,
    "flatten",
    "reshape",
    "view",
    "transpose",
    "permute",
    "squeeze",
    "amax",
}
GATES = {nn.Sigmoid, nn.Hardsigmoid, torch.sigmoid, "sigmoid", F.softmax}


class Reference:
    """A network's forward pass on `inputs`, written down op by op.

    Args:
        net: a network that torch.fx can trace, in evaluation mode.
        inputs: (B, ...), float64.
    """

    def __init__(self, net: nn.Module, inputs: torch.Tensor) -> None:
        self.traced = fx.symbolic_trace(net.eval())
        self.modules = dict(self.traced.named_modules())
        self.values, self.signal, self.matrices = {}, set(), {}
        for node in self.traced.graph.nodes:
            if node.op == "placeholder":
                self.values[node], self.input = inputs, node
                self.signal.add(node)
            elif node.op == "get_attr":
                self.values[node] = operator.attrgetter(node.target)(self.traced).detach()
            elif node.op == "output":
                self.output = node.args[0]
            else:
                self.values[node] = self._run(node, self.values).detach()
                self.signal |= {node} & {node for i in node.all_input_nodes if i in self.signal}

    def relevance(
        self, prior: torch.Tensor, layer: str | None = None, *, contrastive: bool = False
    ) -> torch.Tensor:
        """The layer's relevance, shaped like its output, for a prior (B, num_classes)."""
        claims = defaultdict(list, {self.output: [(prior, None)]})
        top = self._classifiers()
        for node in reversed(self.traced.graph.nodes):
            if node is self.input or node not in self.signal:
                continue
            for P, sign in claims[node]:
                for operand, share, folded in self._hand_down(node, P, sign, node in top, contrastive):
                    claims[operand].append((share, folded))
        wanted = self.input if layer is None else self._node_of(layer)
        return sum((P for P, _ in claims[wanted]), torch.zeros_like(self.values[wanted]))

    def _hand_down(self, node, P, sign, is_classifier, contrastive):
        """Each operand of `node` that carries the signal, what it gets, and the sign of responses to explain there.

        `sign` is that of the contributions that count, if a norm above is a part of this layer, and otherwise None.
        """
        kind = self._kind(node)
        operands = [i for i in node.all_input_nodes if i in self.signal]
        if kind in WEIGHTED:
            response = self.values[node]
            if sign is None:
                sign = torch.ones_like(response) if is_classifier else response.sign()
            shares = self._by_contributions(node, operands, sign, P)
            if contrastive and is_classifier:
                duals = self._by_contributions(node, operands, -sign, P)
                shares = [(i, winner - dual) for (i, winner), (_, dual) in zip(shares, duals, strict=True)]
            return [(i, share, None) for i, share in shares]
        if kind in AVERAGE or (kind in SUM and len(operands) > 1):
            return [
                (*share, None)
                for share in self._by_contributions(node, operands, self.values[node].sign(), P)
            ]
        if kind in BATCH_NORM:
            scale = self._batch_scale(node)
            is_last = operands[0] in self._classifiers()  # whose responses count as positive
            response = torch.ones_like(P) if is_last else self.values[node].sign()
            return [(operands[0], P, response * scale.sign())]
        if kind not in ROUTES:
            return [(i, share, None) for i, share in self._passed(node, kind, operands, P)]
        shares = self._routed(node, operands, P)
        if sign is None:
            return [(i, share, None) for i, share in shares]
        signs = self._routed(node, operands, sign)
        return [(i, share, moved.sign()) for (i, share), (_, moved) in zip(shares, signs, strict=True)]

    def _batch_scale(self, node):
        """gamma, shaped to be multiplied with the values."""
        gamma = (
            self.modules[node.target].weight
            if node.op == "call_module"
            else self._argument(node, "weight", 3)
        )
        values = self.values[node]
        gamma = torch.ones(values.shape[1]) if gamma is None else gamma.detach()
        return gamma.to(values).reshape(1, -1, *[1] * (values.ndim - 2))

    def _argument(self, node, name, position):
        argument = node.kwargs.get(name, node.args[position] if len(node.args) > position else None)
        return self.values[argument] if isinstance(argument, fx.Node) else argument

    def _routed(self, node, operands, P):
        """Values move: the gradient."""
        matrices = self._jacobians(node, operands)
        return [
            (i, (J.T @ P.flatten()).view_as(self.values[i])) for i, J in zip(operands, matrices, strict=True)
        ]

    def _passed(self, node, kind, operands, P):
        """One input, one output."""
        if kind in PRODUCT and len(operands) > 1:
            operands = [i for i in operands if self._kind(i) not in GATES]
            assert len(operands) == 1, f"which operand of {node} is the gate?"
        assert kind in ONE_INPUT | PRODUCT | SUM, f"the reference does not know {kind}"
        # where the value was broadcast, its copies add up
        return [(operands[0], P.sum_to_size(self.values[operands[0]].shape))]

    def _by_contributions(self, node, operands, sign, P):
        """Eq. 4 and 10 for all neurons of a layer, the matrix z = W a written out."""
        matrices = self._jacobians(node, operands)
        z = [J * self.values[i].flatten() for i, J in zip(operands, matrices, strict=True)]
        excitation = [(sign.flatten()[:, None] * contribution).clamp(min=0) for contribution in z]
        total = sum(e.sum(1) for e in excitation)
        P_given = [torch.where(total[:, None] == 0, 0.0, e / total[:, None]) for e in excitation]
        return [
            (i, (p.T @ P.flatten()).view_as(self.values[i])) for i, p in zip(operands, P_given, strict=True)
        ]

    def _jacobians(self, node, operands):
        """d value / d operand as matrices (neurons, inputs)."""

        def run(*operand_values):
            return self._run(node, {**self.values, **dict(zip(operands, operand_values, strict=True))})

        if node not in self.matrices:
            jacobians = torch.autograd.functional.jacobian(run, tuple(self.values[i] for i in operands))
            self.matrices[node] = [J.reshape(self.values[node].numel(), -1) for J in jacobians]
        return self.matrices[node]

    def _run(self, node, values):
        def value(n):  # cloned: what works in place must not rewrite the record
            return values[n].clone() if isinstance(values[n], torch.Tensor) else values[n]

        args, kwargs = fx.node.map_arg((node.args, node.kwargs), value)
        if node.op == "call_module":
            return self.modules[node.target](*args, **kwargs)
        if node.op == "call_method":
            return getattr(args[0], node.target)(*args[1:], **kwargs)
        return node.target(*args, **kwargs)

    def _kind(self, node):
        return type(self.modules[node.target]) if node.op == "call_module" else node.target

    def _node_of(self, layer):
        return next(n for n in self.traced.graph.nodes if n.op == "call_module" and n.target == layer)

    def _classifiers(self):
        """The layers with weights that are met first on the way down from the output."""
        found, waiting = set(), [self.output]
        while waiting:
            node = waiting.pop()
            if self._kind(node) in WEIGHTED:
                found.add(node)
            else:
                waiting.extend(i for i in node.all_input_nodes if i in self.signal)
        return found
