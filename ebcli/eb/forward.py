"""A recorded forward pass: in evaluation mode, with hooks on the layers whose relevance is asked for."""

import dataclasses
import re
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import Module
from torch.utils.hooks import RemovableHandle

from ebcli.eb.arguments import check_batch, check_logits
from ebcli.eb.cells import InputGrid
from ebcli.eb.inputs import Inputs, NetworkInputs
from ebcli.eb.mode import RecordingMode, refuse
from ebcli.eb.operations import ACTIVE_TAPE, Value, quiet
from ebcli.eb.paths import Path
from ebcli.eb.places import Images
from ebcli.eb.tape import Tape
from ebcli.errors import LayerError, closest
from ebcli.heads import HeadChoice, head_of, heads_of
from ebcli.layouts import OF_INPUT, Layout

LayerChoice = str | Module | None

_WRAPPERS = nn.DataParallel, nn.parallel.DistributedDataParallel
_OF_WRAPPERS = re.compile(r"^(?:(?:module|_orig_mod)\.)+")  # at the start of a layer's name


class LayerHooks:
    """Forward hooks that find the values of several layers in the tape.

    Numbers are kept from the first layer on: what is recorded before is only asked for facts.

    Attributes:
        handles: of the hooks, to be removed.
    """

    def __init__(self, net: Module, inputs: NetworkInputs, layers: Sequence[LayerChoice], tape: Tape) -> None:
        self.handles: list[RemovableHandle] = []
        self._tape = tape
        self._values: dict[str | None, Value] = {}
        self._net = net
        self._inputs = inputs
        self.names = [_name_of(layer, net, inputs, tape) for layer in layers]

    def run(self) -> Any:
        """The network's output."""
        self.sources, tensors = self._inputs.start(self._tape)
        for name in dict.fromkeys(self.names):
            if name is None or name in self.sources:
                continue
            module = self._net.get_submodule(name)
            hook = partial(self._output, name)
            try:
                # before the network's own hooks, which may keep the output for another layer
                self.handles.append(module.register_forward_hook(hook, prepend=True))
            except RuntimeError as error:
                raise LayerError(in_script(label_of(name))) from error
        self._tape.saves_numbers = False
        for name in self.sources.keys() & self.names:
            self._check_dtype(name, self.sources[name].dtype)
            self._note(name, self.sources[name])
        return self._inputs.call(self._net, tensors)

    def values(self) -> list[Value]:
        """The layers' values, in order. Raises LayerError if one was not called."""
        for name in self.names:
            if name in self._values:
                continue
            if is_scripted(self._net):
                raise LayerError(in_script(label_of(name)))
            raise LayerError(f"{label_of(name)} was not called during the forward pass")
        return [self._values[name] for name in self.names]

    def _capture(self, name: str | None, tensor: Tensor) -> None:
        label = label_of(name)
        if name in self._values:
            raise LayerError(
                f"{label} is called more than once during the forward pass: choose another layer"
            )
        self._check_dtype(name, tensor.dtype)
        value = self._tape.value_of(tensor)
        if not isinstance(value, Value):
            raise LayerError(f"{label} does not depend on the input: choose another layer")
        if value.num_reads:  # what read it before is not behind the layer
            value = self._tape.copy_of(tensor, value)
        self._note(name, value)

    def _check_dtype(self, name: str | None, dtype: torch.dtype) -> None:
        if not dtype.is_floating_point:
            raise LayerError(
                f"{label_of(name)} has dtype {dtype}, but only floating-point tensors have relevance"
            )

    def _note(self, name: str | None, value: Value) -> None:
        value.facts.is_layer = True
        self._tape.saves_numbers = True
        self._tape.memory.save(value)
        value.num_reads += 1  # so that it stays
        self._values[name] = value

    def _output(self, name: str, _module: Module, _args: Any, output: Any) -> None:
        if ACTIVE_TAPE.get() is not self._tape:
            return  # another thread's forward pass
        tensors = [*heads_of(output).values()]
        if len(tensors) != 1:
            raise LayerError(
                f"{label_of(name)} returns a {type(output).__name__} with {len(tensors)} floating-point "
                "tensors, not a single one: choose a layer inside or after it"
            )
        self._capture(name, tensors[0])


@dataclasses.dataclass(frozen=True)
class Forward:
    """A recorded forward pass.

    Attributes:
        tape: of it.
        logits: the network's output, (B, num_classes, ...).
        head: the name of the head that it is; None of the only one.
        output: its value.
        paths: from there to each layer, and the layer's name.
        images: which image each element belongs to.
        sources: the inputs, by the layers that they are: the picture is None.
        channel_axes: the axis of channels of each input; None if the network does not tell.
        layouts: of the layers' outputs; None of those that have no map, and of inputs.
    """

    tape: Tape
    logits: Tensor
    head: str | None
    output: Value
    paths: dict[Path, str | None]
    images: Images
    sources: dict[str | None, Value]
    channel_axes: dict[str | None, int | None]
    layouts: dict[Path, Layout | None]

    @classmethod
    def of(
        cls,
        net: Module,
        inputs: NetworkInputs,
        layers: Sequence[LayerChoice],
        head: HeadChoice,
        *,
        tracks: bool,
    ) -> "Forward":
        """Run the network once. Raises LayerError if the output does not depend on a layer."""
        picture = inputs.main
        tape = Tape(net, names_all=tracks)
        hooks = LayerHooks(net, inputs, layers, tape)
        with evaluating(net), RecordingMode(tape), removing(hooks.handles), torch.enable_grad():
            try:
                head_name, result = head_of(hooks.run(), head)
            except (RuntimeError, ValueError, IndexError):
                check_batch(net, picture)
                raise
            output = tape.value_of(result)
        check_logits(net, picture, result.detach())
        values = hooks.values()
        # numbers that come back are constants for the tape, and their maps would be wrong without a word
        refuse(tape.escapes_after(min(value.made_at for value in values)), "error")
        if not isinstance(output, Value):
            raise LayerError("the network's output does not depend on its input")
        paths = {Path(output, value): name for value, name in zip(values, hooks.names, strict=True)}
        if output.facts.is_softmax:
            warnings.warn("the network ends in a softmax: the map explains the score before it", stacklevel=3)
        cut = [label_of(name) for path, name in paths.items() if not path.ops and path.layer is not output]
        if cut:
            raise LayerError(
                f"the output does not depend on {cut[0]}, or only in torch.no_grad(): choose a later one"
            )
        sources = hooks.sources
        images = Images(sources[None], [source for name, source in sources.items() if name is not None])
        grids = {name: InputGrid(tape.ops, source) for name, source in sources.items()}
        layouts: dict[Path, Layout | None] = {}
        for path, name in paths.items():
            layouts[path] = None
            if name not in sources:
                layouts[path] = grids[None].layout_of(path.layer, images.axis(path.layer) or 0)
        return cls(
            tape=tape,
            logits=result.detach(),
            head=head_name,
            output=output,
            paths=paths,
            images=images,
            sources=sources,
            channel_axes={name: grid.channel_axis for name, grid in grids.items()},
            layouts=layouts,
        )

    def cells_of(self, path: Path) -> "LayerCells":
        """Where the layer at the end of a path holds the cells of its map."""
        name = self.paths[path]
        return LayerCells(
            layer=name,
            layout=self.layouts[path],
            image_axis=self.images.axis(path.layer),
            channel_axis=self.channel_axes.get(name, self.channel_axes[None]),
        )


class LayerCells(NamedTuple):
    """Where the output of a layer holds the cells of its map.

    Attributes:
        layer: its name; None for the input.
        layout: with the images first; None of a layer that has no map, and of an input.
        image_axis: the axis of images; None if it has none.
        channel_axis: of an input, and of the picture otherwise; None if the network does not tell.
    """

    layer: str | None
    layout: Layout | None
    image_axis: int | None
    channel_axis: int | None


def cells_of_layers(
    net: Module, inputs: Inputs, layers: Sequence[LayerChoice], head: HeadChoice = None
) -> list[LayerCells]:
    """Run a network once to find where layers hold the cells of maps; for errors, see `Forward.of`."""
    with recorded(net, inputs, layers, head) as forward:
        return [forward.cells_of(path) for path in forward.paths]


@contextmanager
def recorded(
    net: Module,
    inputs: Inputs,
    layers: Sequence[LayerChoice],
    head: HeadChoice = None,
    *,
    names_all: bool = False,
) -> Iterator[Forward]:
    """A recorded forward pass, which is freed at the end; for errors, see `Forward.of`.

    Args:
        net: the network.
        inputs: what it is called with.
        layers: the layers.
        head: the head, if there are several.
        names_all: messages name the module of each operation.
    """
    call = NetworkInputs(inputs)
    with (
        quiet(),
        torch.inference_mode(False),
        torch.no_grad(),
        torch.autocast(call.main.device.type, enabled=False),
    ):
        forward = Forward.of(unwrap(net), call, layers, head, tracks=names_all)
        try:
            yield forward
        finally:
            forward.tape.clear()


@contextmanager
def removing(handles: Iterable[RemovableHandle]) -> Iterator[None]:
    """Remove hooks at the end."""

    def remove() -> None:
        for handle in handles:
            handle.remove()

    try:
        yield
    finally:
        try:
            remove()
        finally:
            remove()  # again, because the first may be interrupted


def unwrap(network: Any) -> Any:
    """The network in a ``DataParallel``, or the one that ``torch.compile`` compiled, so that layers have its names."""
    while True:
        if isinstance(network, _WRAPPERS):
            network = network.module
        elif isinstance(getattr(network, "_orig_mod", None), Module):
            network = network._orig_mod
        else:
            return network


def is_scripted(net: Module) -> bool:
    """Whether TorchScript runs a network, or a part of it."""
    return any(isinstance(module, torch.jit.ScriptModule) for module in net.modules())


def in_script(layer: str) -> str:
    """That a layer has no map because TorchScript runs it."""
    advice = "use the module that it was made from, or explain the input"
    return f"{layer} is run by TorchScript (torch.jit), which calls no hooks on layers: {advice}"


def without_wrappers(layer: str) -> str:
    """The name of a layer in the network itself, given that in its wrappers, such as ``module.layer4``."""
    return _OF_WRAPPERS.sub("", layer)


def label_of(layer: str | None) -> str:
    if layer is None:
        return "the input"
    if layer.startswith(OF_INPUT):
        return f"input {layer.removeprefix(OF_INPUT)!r}"
    return f"layer {layer!r}"


def _name_of(layer: LayerChoice, net: Module, inputs: NetworkInputs, tape: Tape) -> str | None:
    """A layer's name; None for the input, or the one that is the picture."""
    if isinstance(layer, Module):
        if layer not in tape.names:
            raise LayerError(f"this {type(layer).__name__} is not a module of the network")
        return tape.names[layer]
    names = inputs.names_in(net)
    if layer is None or layer.startswith(OF_INPUT):
        return inputs.layer_of(layer, names)
    if isinstance(net, torch.jit.ScriptModule):
        raise LayerError(in_script(label_of(layer)))
    for name in (layer, without_wrappers(layer)):
        with suppress(AttributeError):
            if net.get_submodule(name) is not net:
                return name
    if layer in names and len(inputs.tensors) > 1:
        return inputs.layer_of(layer, names)
    hint = "use layer=None for the input"
    if layer != "input":
        hint = closest(layer, filter(None, tape.names.values()))
    raise LayerError(f"the network has no layer {layer!r}" + (f": {hint}" if hint else ""))


class _SharedState:
    """What is changed for a whole process while networks run, and put back when the last thread is done.

    Modules are in evaluation mode, and what `torch.compile` compiled runs as it is written.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # whether a module was training, and who needs it in evaluation mode
        self._modules: WeakKeyDictionary[Module, tuple[bool, set[object]]] = WeakKeyDictionary()
        self._users: set[object] = set()
        self._stance = ExitStack()

    def enter(self, user: object, modules: Sequence[Module]) -> None:
        with self._lock:
            if not self._users and "torch._dynamo" in sys.modules:
                self._stance.enter_context(torch.compiler.set_stance("force_eager"))
            self._users.add(user)
            for module in modules:
                _, users = self._modules.setdefault(module, (module.training, set()))
                users.add(user)
                if module.training:  # setting attributes of modules is slow
                    module.training = False

    def leave(self, user: object, modules: Sequence[Module]) -> None:
        """Undo what `enter` did for a user, as far as it came. It can be called again."""
        with self._lock:
            for module in modules:
                if module not in self._modules:
                    continue
                was_training, users = self._modules[module]
                users.discard(user)
                if users:
                    continue
                if was_training:
                    module.training = True
                del self._modules[module]
            self._users.discard(user)
            if not self._users:
                self._stance.close()


_shared_state = _SharedState()


@contextmanager
def evaluating(net: Module) -> Iterator[None]:
    """Evaluation mode for every module until the last thread is done, which restores each one's mode.

    What `torch.compile` compiled runs as it is written.
    """
    user = object()
    modules = list(net.modules())
    try:
        _shared_state.enter(user, modules)
        yield
    finally:
        try:
            _shared_state.leave(user, modules)
        except BaseException:  # interrupted
            _shared_state.leave(user, modules)
            raise
