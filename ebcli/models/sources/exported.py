"""Programs of ``torch.export``: ``net.pt2``. PyTorch unpickles what is in such a file, which can run any code."""

from contextlib import suppress
from typing import Any

import torch
from torch.export.unflatten import InterpreterModule, unflatten
from torch.nn import Module

from ebcli.errors import EbcliError, first_line
from ebcli.heads import HeadChoice, head_of
from ebcli.models.keywords import SIGMOID, SOFTMAX
from ebcli.models.sources.base import NetworkFile, quiet

_aten = torch.ops.aten
_SOFTMAX = _aten.softmax.int, _aten._softmax.default, _aten.log_softmax.int, _aten._log_softmax.default
_SCORES = {**dict.fromkeys(_SOFTMAX, SOFTMAX), _aten.sigmoid.default: SIGMOID}


class Exported(NetworkFile):
    """A network that ``torch.export.save`` wrote. Its modules have their names and types."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        try:
            with quiet("torch.export"):  # shows the traceback of each format that it tries
                self._program = torch.export.load(name)
        except Exception as error:  # a file can be wrong in any way
            raise self._error(f"is no program of torch.export.save(): {first_line(error)}") from error
        signature = self._program.graph_signature
        inputs = signature.user_inputs
        self._check_single(inputs)
        values = {node.name: node.meta.get("val") for node in self._program.graph.nodes}
        self._input_shape = getattr(values[inputs[0]], "shape", ())
        self._outputs = [*map(values.get, signature.user_outputs)]
        self._end = 0  # which of the outputs is explained
        self.choose_head(None)

    def choose_head(self, choice: HeadChoice) -> HeadChoice:
        """The network ends before a softmax or a sigmoid of the head, by default of the first output."""
        outputs = self._program.call_spec.out_spec.unflatten(self._outputs)
        with suppress(EbcliError):  # the network's own output tells what is wrong
            head = head_of(outputs, choice)
            self._end = [output is head.tensor for output in self._outputs].index(True)
        self.take(self._input_shape, len(getattr(self._outputs[self._end], "shape", ())))
        return choice

    def network(self) -> Module:
        net: Any = unflatten(self._program)
        scores = _use_logits(net, self._end)
        for module in net.modules():
            module._run_with_interpreter = False  # which would be slower
            if isinstance(module, InterpreterModule):
                module.finalize()
                module.__class__ = type(str(module.type_name()).rpartition(".")[2], (InterpreterModule,), {})
        net.finalize()
        net.scores = scores
        return net


def _use_logits(module: Any, index: int = 0) -> str | None:
    """Let an output of a network end before a softmax or a sigmoid; returns what makes scores of the logits."""
    (output,) = module.graph.find_nodes(op="output")
    end = output.args[0]
    while isinstance(end, (list, tuple)):
        end = end[index]
        index = 0
    if end.op == "call_module":
        return _use_logits(module.get_submodule(end.target))
    scores = _SCORES.get(end.target)
    ndim = end.meta["val"].ndim
    if scores is None or ndim not in (2, 4):
        return None
    if scores == SOFTMAX and end.args[1] % ndim != 1:
        return None
    output.replace_input_with(end, end.args[0])
    module.graph.erase_node(end)
    return scores
