"""Networks in ONNX files: ``net.onnx``. They are data: operators are looked up among those of the converter.

Graphs are brought into the form that onnx2torch converts: constants computed, operators of an older set.
"""

import ast
import math
import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.fx import GraphModule
from torch.nn import Module

from ebcli.errors import ConfigurationError, first_line, import_optional
from ebcli.files.paths import safe_open
from ebcli.heads import HeadChoice, name_of
from ebcli.models.keywords import SIGMOID, SOFTMAX
from ebcli.models.loaded import HeadShape
from ebcli.models.sources.base import NetworkFile

Operator = tuple[str, str]  # domain and type

_SCORES = {"Softmax": SOFTMAX, "LogSoftmax": SOFTMAX, "Sigmoid": SIGMOID}
_LONGEST = 1 << 20  # characters of class names
_READ_AGAIN = 4  # times; tensors can share values
_OPSET = 17  # the newest set of which onnx2torch converts nearly all operators
_GELU = "Gelu"
_MOST_NODES = 20_000
_LARGEST = 1 << 30  # values of a result
_ROOM = 1 << 26  # values that may be computed of constants, besides twice as many as the file has
# In time and memory that their results tell; they open no files
_FOLDABLE = set(
    "Abs Add And Cast Ceil Clip Concat Constant ConstantOfShape Cos CumSum DequantizeLinear Div Equal Erf Exp "
    "Expand EyeLike Flatten Floor Gather GatherElements GatherND Greater GreaterOrEqual IsInf IsNaN Less "
    "LessOrEqual Log Max Min Mod Mul Neg Not Or Pad Pow Range Reciprocal ReduceMax ReduceMean ReduceMin "
    "ReduceProd ReduceSum Reshape Round ScatterND Shape Sigmoid Sign Sin Size Slice Softmax Split Sqrt "
    "Squeeze Sub Sum Tanh Tile Transpose Trilu Unsqueeze Where Xor".split()
)


class Onnx(NetworkFile):
    """A network in an ONNX file, converted to PyTorch. Its layers have the names of the file's nodes."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        import_optional("onnx2torch")
        self._onnx = import_optional("onnx")
        self._data: dict[Path, int] = {}  # bytes that were read of files
        self._model = self._read()
        weights = {tensor.name for tensor in self._model.graph.initializer}
        inputs = {value.name: value for value in self._model.graph.input if value.name not in weights}
        self._check_single(inputs, ", the images")
        (images,) = inputs.values()
        kind = images.type.tensor_type
        data_type = self._onnx.TensorProto.DataType.Name(kind.elem_type).lower()
        if data_type not in ("float", "float16"):
            raise self._error(f"takes images of type {data_type}: export it for images of type float")
        shape = [*_shape_of(images)]
        self._has_channels_last = _has_channels_last(shape)
        if self._has_channels_last:
            shape.insert(1, shape.pop())
        self._input_shape = shape
        self._outputs = {value.name: _shape_of(value) for value in self._model.graph.output}
        self.choose_head(None)

    def choose_head(self, choice: HeadChoice) -> None:
        """The network ends at the head; without a choice, at the first output that has a usual number of dimensions."""
        fitting = [name for name, shape in self._outputs.items() if len(shape) in (2, 3, 4)]
        name: str | None
        name, *_ = [*fitting, *self._outputs]
        if choice is not None:
            if len(self._outputs) < 2:
                raise self._error("has only one output: drop the head")
            name = name_of(choice, [*self._outputs])
        if name is None:
            raise self._error(f"has no head {choice!r}: choose one of {', '.join(fitting)}")
        if len(fitting) > 1 or choice is not None:
            self.head = name
            self.heads = {fitting_name: self._outputs[fitting_name][1:] for fitting_name in fitting}
        rank = len(self._outputs[name])
        self._scores = self._use_logits(name, rank)
        self.take(self._input_shape, rank)

    def network(self) -> Module:
        try:
            net = _rename(*convert(self._model, self._load_data)).float()
        except ConfigurationError:
            raise
        except Exception as error:  # a file can be wrong in any way
            reason = "it is not valid, or the converter does not know how to"
            if isinstance(error, NotImplementedError):
                reason = first_line(error)
            problem = f"cannot convert {self.name} ({reason})"
            raise ConfigurationError(f"{problem}: export it with torch.export to a .pt2 file") from error
        if self._has_channels_last:
            net.register_forward_pre_hook(lambda _net, images: images[0].movedim(1, -1))
            net.register_forward_hook(_put_channels_first)
        net.scores = self._scores
        net.categories = self._class_names()
        return net

    def files(self, weights: str) -> Sequence[Path]:
        return [self.path, *self._data]

    def _read(self) -> Any:
        try:
            with safe_open(self.path) as file:
                model = self._onnx.load_model_from_string(file.read())
        except OSError as error:
            raise ConfigurationError(f"cannot read {self.name}: {error.strerror}") from error
        except Exception as error:  # protobuf has several implementations
            raise self._error("is no ONNX file, or is truncated: export it again") from error
        if not (model.graph.node and model.graph.output):
            raise self._error("is no ONNX file: it has no network")
        problem = refusal(model)
        if problem:
            raise self._error(f"has {problem}: export it without")
        for opset in model.opset_import:
            if opset.domain == "ai.onnx":  # the long name of the usual operators
                opset.domain = ""
        return model

    def _load_data(self, model: Any) -> None:
        """Read the tensors that are in other files."""
        tensors = [*model.graph.initializer]
        for node in model.graph.node:
            tensors += [attribute.t for attribute in node.attribute if attribute.HasField("t")]
        for tensor in tensors:
            if tensor.data_location == self._onnx.TensorProto.EXTERNAL:
                entry = {item.key: item.value for item in tensor.external_data}
                tensor.raw_data = self._external(**entry)
                tensor.data_location = self._onnx.TensorProto.DEFAULT
                del tensor.external_data[:]

    def _external(
        self, location: str = "", offset: str = "0", length: str | None = None, checksum: str = ""
    ) -> bytes:
        """What a file of the same directory has of a tensor."""
        file = self.path.parent / location
        # the cache of the Hugging Face hub has links to files of one directory
        homes = os.path.realpath(self.path.parent), Path(os.path.realpath(self.path)).parent
        target = Path(os.path.realpath(file))
        is_inside = any(target.is_relative_to(home) for home in homes)
        if Path(location).is_absolute() or ".." in Path(location).parts or not is_inside:
            raise self._error(f"has data in {location!r}, which leads out of its directory")
        title = f"'{file}', the data of {self.name}"
        try:
            with safe_open(file) as stream:
                file_size = os.fstat(stream.fileno()).st_size
                available = file_size - int(offset)
                size = int(length or available)
                self._data[file] = self._data.get(file, 0) + size
                if self._data[file] > _READ_AGAIN * file_size:
                    raise self._error(f"reads '{file}' again and again: export it again")
                stream.seek(int(offset))
                if not 0 <= size <= available:
                    raise ConfigurationError(f"{title}, is truncated: copy it again")
                return stream.read(size)
        except OSError as error:
            raise ConfigurationError(f"cannot read {title}: {error.strerror}") from error

    def _use_logits(self, name: str, rank: int) -> str | None:
        """Let the network end at an output of so many dimensions, before its softmax or sigmoid.

        Returns:
            What makes scores of the logits.
        """
        graph = self._model.graph
        scores = None
        for node in reversed(graph.node):
            if name not in node.output:
                continue
            if node.op_type == "Identity":
                name = node.input[0]
            elif rank in (2, 4) and self._is_over_classes(node, rank):
                name = node.input[0]
                scores = _SCORES[node.op_type]
                break
        del graph.output[:]
        graph.output.append(self._onnx.helper.make_empty_tensor_value_info(name))
        return scores

    def _is_over_classes(self, node: Any, rank: int) -> bool:
        """Whether an operator makes scores of the logits of all classes."""
        scores = _SCORES.get(node.op_type)
        if scores != SOFTMAX:
            return scores is not None
        axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), -1) % rank
        if self._has_channels_last:
            return axis == rank - 1
        return axis == 1

    def _class_names(self) -> Any:
        """What the metadata have, as Ultralytics writes them, in place of a list of names."""
        metadata = {entry.key: entry.value for entry in self._model.metadata_props}
        try:
            names = ast.literal_eval(metadata.get("names", "")[:_LONGEST])
            if isinstance(names, dict):
                names = [names[key] for key in sorted(names)]
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            return None
        return names


def _shape_of(value: Any) -> HeadShape:
    """The shape of an input or output, where a side that is free has a name."""
    return tuple(dim.dim_value or dim.dim_param or "?" for dim in value.type.tensor_type.shape.dim)


def _put_channels_first(_net: Module, _images: Any, output: Tensor) -> Tensor:
    if output.ndim != 4:
        return output
    return output.movedim(-1, 1)


def _has_channels_last(shape: Sequence[Any]) -> bool:
    """Whether a shape is (B, H, W, C): there are fewer channels than pixels a side."""
    if len(shape) != 4 or not isinstance(shape[3], int):
        return False
    return not isinstance(shape[1], int) or shape[3] < shape[1]


def _rename(net: GraphModule, names: Mapping[str, str]) -> Any:
    """The network with other names of modules, which may contain dots, and products with weights as linear layers."""
    parts: dict[str, Any] = {}
    for node in net.graph.nodes:
        if node.op == "get_attr":
            parts[node.target] = net.get_buffer(node.target)
        if node.op == "call_module":
            part = net.get_submodule(node.target)
            name = names.get(node.target, "")
            if type(part).__name__ == "OnnxMatMul":
                weights = parts.get(node.args[1].target)
                if isinstance(weights, Tensor) and weights.ndim == 2:  # the product would be one of batches
                    inputs, outputs = weights.shape
                    part = nn.Linear(inputs, outputs, bias=False, device="meta")
                    part.weight = nn.Parameter(weights.T)
                    node.args = node.args[:1]
            if all(name.split(".")) and name not in parts:
                node.target = name
            parts[node.target] = part
    return GraphModule(parts, net.graph)


def convert(model: Any, load_data: Callable[[Any], None]) -> tuple[Any, dict[str, str]]:
    """The network of a model as a ``GraphModule``, and the names of the nodes by those of its modules.

    Args:
        model: a ``ModelProto``, which is changed.
        load_data: called with a model to read its tensors from other files.

    Raises:
        NotImplementedError: there are operators that the converter does not know; the message names all.
    """
    converter = import_optional("onnx2torch")
    _add_gelu()
    model = _inline(model)
    load_data(model)
    model, too_large = _fold(model)
    missing = {*_lower(model)}
    for _domain, operator in _unknown(model):
        missing.add(operator)
    if missing:
        raise NotImplementedError(f"the converter has no {', '.join(sorted(missing))}")
    if too_large:
        raise NotImplementedError(f"its {too_large} makes more values than fit into memory")
    graph = import_optional("onnx2torch.onnx_graph").OnnxGraph(model.graph)
    return converter.convert(model), {module: node.name for module, node in graph.nodes.items()}


def refusal(model: Any) -> str | None:
    """What a model has that is not converted, or would take without end: part of a sentence."""
    if any(node.op_type == "NonMaxSuppression" for node in model.graph.node):
        return "non-maximum suppression in it"
    all_nodes = [*model.graph.node]
    bodies = {}
    for function in model.functions:
        all_nodes += function.node
        bodies[function.domain, function.name] = function.node
    for node in all_nodes:
        if any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute):
            return f"{node.op_type}, whose parts run or not as the values decide"

    sizes: dict[Operator, float] = {}

    def inlined_size(nodes: Any) -> float:
        total = 0.0
        for node in nodes:
            operator = node.domain, node.op_type
            if operator in bodies and operator not in sizes:
                sizes[operator] = math.inf  # of those that call themselves
                sizes[operator] = inlined_size(bodies[operator])
            total += sizes.get(operator, 1)
        return total

    if len(all_nodes) > _MOST_NODES or inlined_size(model.graph.node) > _MOST_NODES:
        return f"more than {_MOST_NODES:,} nodes"
    return None


def _add_gelu() -> None:
    """Teach the converter GELU as one operation."""
    registry = import_optional("onnx2torch.node_converters.registry")
    common = import_optional("onnx2torch.utils.common")

    def gelu(node: Any, _graph: Any) -> Any:
        module = nn.GELU(node.attributes.get("approximate", "none"))
        return common.OperationConverterResult(module, common.onnx_mapping_from_node(node))

    try:
        registry.get_converter(_GELU, _OPSET)
    except NotImplementedError:
        registry.add_converter(_GELU, _OPSET)(gelu)


def _unknown(model: Any) -> set[Operator]:
    """The operators that the converter does not know."""
    registry = import_optional("onnx2torch.node_converters.registry")
    versions = {opset.domain: opset.version for opset in model.opset_import}
    unknown = set()
    for domain, name in {(node.domain, node.op_type) for node in model.graph.node}:
        try:
            registry.get_converter(name, min(versions.get(domain, 1), _OPSET), domain)
        except NotImplementedError:
            unknown.add((domain, name))
    return unknown


def _inline(model: Any) -> Any:
    """The model with unknown operators replaced by those that they are functions of."""
    inline = import_optional("onnx.inliner").inline_selected_functions
    ignored = {("", "CastLike")}  # which is dropped later
    while True:
        operators = _unknown(model) - ignored
        if not operators:
            return model
        model = inline(model, sorted(operators), inline_schema_functions=True)
        ignored |= operators


def _fold(model: Any) -> tuple[Any, str]:
    """The model with what depends on constants only computed, and without what the output does not depend on.

    And the operator with which it is too large.
    """
    ir = import_optional("onnx_ir", "onnxscript")
    passes = import_optional("onnx_ir.passes.common", "onnxscript")
    program = ir.from_proto(model)
    room = _ROOM + 2.0 * sum(math.prod(tensor.dims) for tensor in model.graph.initializer)

    def is_cheap(node: Any) -> bool:
        nonlocal room
        if node.domain or node.op_type not in _FOLDABLE:
            return False
        count = 0
        for value in node.outputs:
            if value.shape is None or not value.shape.is_static():
                return False
            count += math.prod(value.shape.numpy())
        if count > room:
            return False
        room -= count
        return True

    import_optional("onnxscript.optimizer").fold_constants(
        program, onnx_shape_inference=True, should_fold=is_cheap, output_size_limit=sys.maxsize
    )
    passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(program)
    passes.IdentityEliminationPass()(program)
    passes.RemoveUnusedNodesPass()(program)
    return ir.to_proto(program), _too_large(program.graph, room)


def _too_large(graph: Any, room: float) -> str:
    """The operator with which what is left to compute is too much, as values can double at each node; empty if none.

    Args:
        graph: the graph, whose values have shapes.
        room: how many values may be computed of constants.
    """
    constants = {*graph.initializers.values(), None}
    for node in graph:
        if constants.issuperset(node.inputs):
            constants.update(node.outputs)
            room -= sum(map(_size, node.outputs))
        # a side that is free, such as that of the batch, is at least 1
        if room < 0 or any(_size(value, free=1) > _LARGEST for value in node.outputs):
            return node.op_type
    return ""


def _size(value: Any, free: float = math.inf) -> float:
    """The number of values in a result, with the length of a side that only a computation tells."""
    if value.shape is None:
        return free
    if 0 in [*value.shape]:
        return 0
    return math.prod(side if isinstance(side, int) else free for side in value.shape)


def _lower(model: Any) -> list[str]:
    """Turn operators into those of the older set; returns what cannot be expressed in it."""
    onnx = import_optional("onnx")
    value_of = onnx.helper.get_attribute_value
    problems: list[str] = []
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    default = next(opset for opset in model.opset_import if not opset.domain)
    opset = default.version
    default.version = min(opset, _OPSET)
    for node in model.graph.node:
        _pop_attributes(node, {"allowzero"})  # it makes empty tensors
        if node.domain or opset <= _OPSET or not onnx.defs.has(node.op_type, _OPSET):
            continue
        new_schema = onnx.defs.get_schema(node.op_type, opset)
        old_schema = onnx.defs.get_schema(node.op_type, _OPSET)
        new_names = {attribute.name for attribute in node.attribute} - old_schema.attributes.keys()
        for attribute in _pop_attributes(node, new_names):
            default = new_schema.attributes[attribute.name].default_value
            # the number of outputs is seen
            if attribute.name != "num_outputs" and value_of(attribute) != value_of(default):
                problems.append(f"{node.op_type} with {attribute.name}")
        limit = old_schema.max_input
        for name, formal in zip(node.input[limit:], new_schema.inputs[limit:], strict=False):
            if name in constants and formal.name in old_schema.attributes:
                numbers = onnx.numpy_helper.to_array(constants[name]).tolist()
                node.attribute.append(onnx.helper.make_attribute(formal.name, numbers))
            elif name:
                problems.append(f"{node.op_type} with {formal.name}")
        del node.input[limit:]
    return problems


def _pop_attributes(node: Any, names: Collection[str]) -> list[Any]:
    """Remove attributes, and return them."""
    attributes = [attribute for attribute in node.attribute if attribute.name in names]
    for attribute in attributes:
        node.attribute.remove(attribute)
    return attributes
