"""ONNX graphs, brought into the form that onnx2torch converts: constants computed, operators of an older set."""

import math
import sys
from collections.abc import Callable
from typing import Any

from torch import nn

from ebcli.errors import import_optional

_OPSET = 17  # the newest set of which onnx2torch converts nearly all operators
_GELU = "Gelu"
_MOST_NODES = 20_000
_ROOM = 1 << 26  # values that may be computed of constants, besides twice as many as the file has
_COMPUTED = {  # in time and memory that their results tell; they open no files
    *"Abs Add And Cast Ceil Clip Concat Constant ConstantOfShape Cos CumSum DequantizeLinear Div Equal Erf Exp".split(),
    *"Expand EyeLike Flatten Floor Gather GatherElements GatherND Greater GreaterOrEqual IsInf IsNaN Less".split(),
    *"LessOrEqual Log Max Min Mod Mul Neg Not Or Pad Pow Range Reciprocal ReduceMax ReduceMean ReduceMin".split(),
    *"ReduceProd ReduceSum Reshape Round ScatterND Shape Sigmoid Sign Sin Size Slice Softmax Split Sqrt".split(),
    *"Squeeze Sub Sum Tanh Tile Transpose Trilu Unsqueeze Where Xor".split(),
}


def converted(model: Any, load_data: Callable[[Any], None]) -> tuple[Any, dict[str, str]]:
    """The network of a model as a ``GraphModule``, and the names of the nodes by those of its modules.

    Args:
        model: a ``ModelProto``, which is changed.
        load_data: called with a model to read its tensors from other files.

    Raises:
        NotImplementedError: there are operators that the converter does not know; the message names all.
    """
    converter = import_optional("onnx2torch")
    _add_gelu()
    model = _inlined(model)
    load_data(model)
    model = _folded(model)
    if missing := sorted({*_lower(model), *(operator for _, operator in _unknown(model))}):
        raise NotImplementedError(f"the converter has no {', '.join(missing)}")
    graph = import_optional("onnx2torch.onnx_graph").OnnxGraph(model.graph)
    return converter.convert(model), {module: node.name for module, node in graph.nodes.items()}


def refusal(model: Any) -> str | None:
    """What a model has that is not converted, or would take without end: part of a sentence."""
    functions = {(one.domain, one.name): one for one in model.functions}
    sizes = dict[tuple[str, str], float]()

    def size(nodes: Any) -> float:
        return sum(unfolded((node.domain, node.op_type)) for node in nodes)

    def unfolded(name: tuple[str, str]) -> float:
        if name in functions and name not in sizes:
            sizes[name] = math.inf  # of those that call themselves
            sizes[name] = size(functions[name].node)
        return sizes.get(name, 1)

    everything = [node for one in (model.graph, *model.functions) for node in one.node]
    for node in everything:
        if any(one.HasField("g") or one.graphs for one in node.attribute):
            return f"{node.op_type}, whose parts run or not as the values decide"
    if len(everything) > _MOST_NODES or size(model.graph.node) > _MOST_NODES:
        return f"more than {_MOST_NODES:,} nodes"
    return None


def _add_gelu() -> None:
    """Teach the converter GELU as one operation."""
    registry, common = (import_optional(f"onnx2torch.{one}") for one in ("node_converters.registry", "utils.common"))

    def gelu(node: Any, _graph: Any) -> Any:
        module = nn.GELU(node.attributes.get("approximate", "none"))
        return common.OperationConverterResult(module, common.onnx_mapping_from_node(node))

    try:
        registry.get_converter(_GELU, _OPSET)
    except NotImplementedError:
        registry.add_converter(_GELU, _OPSET)(gelu)


def _unknown(model: Any) -> set[tuple[str, str]]:
    """Domains and types of the operators that the converter does not know."""
    registry = import_optional("onnx2torch.node_converters.registry")
    versions, found = {one.domain: one.version for one in model.opset_import}, set()
    for domain, operator in {(node.domain, node.op_type) for node in model.graph.node}:
        try:
            registry.get_converter(operator, min(versions.get(domain, 1), _OPSET), domain)
        except NotImplementedError:
            found.add((domain, operator))
    return found


def _inlined(model: Any) -> Any:
    """The model with unknown operators replaced by those that they are functions of."""
    inliner, before = import_optional("onnx.inliner"), {("", "CastLike")}  # which is dropped later
    while unknown := _unknown(model) - before:
        model = inliner.inline_selected_functions(model, sorted(unknown), inline_schema_functions=True)
        before |= unknown
    return model


def _folded(model: Any) -> Any:
    """The model with what depends on constants only computed, and without what the output does not depend on."""
    ir, passes = (import_optional(one, "onnxscript") for one in ("onnx_ir", "onnx_ir.passes.common"))
    made, room = ir.from_proto(model), _ROOM + 2.0 * sum(math.prod(tensor.dims) for tensor in model.graph.initializer)

    def is_cheap(node: Any) -> bool:
        nonlocal room
        shapes = [one.shape for one in node.outputs]
        is_known = all(shape is not None and shape.is_static() for shape in shapes)
        if node.domain or node.op_type not in _COMPUTED or not is_known:
            return False
        count = sum(math.prod(shape.numpy()) for shape in shapes)
        if count > room:
            return False
        room -= count
        return True

    options = {"onnx_shape_inference": True, "should_fold": is_cheap, "output_size_limit": sys.maxsize}
    import_optional("onnxscript.optimizer").fold_constants(made, **options)
    lift = passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)
    for change in (lift, passes.IdentityEliminationPass(), passes.RemoveUnusedNodesPass()):
        change(made)
    return ir.to_proto(made)


def _lower(model: Any) -> list[str]:
    """Turn operators into those of the older set; returns what cannot be expressed in it."""
    onnx, refused = import_optional("onnx"), list[str]()
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    default = next(one for one in model.opset_import if not one.domain)
    value_of, opset = onnx.helper.get_attribute_value, default.version
    default.version = min(opset, _OPSET)
    for node in model.graph.node:
        for one in [*node.attribute]:
            if one.name == "allowzero":  # it makes empty tensors
                node.attribute.remove(one)
        if node.domain or opset <= _OPSET or not onnx.defs.has(node.op_type, _OPSET):
            continue
        new, old = (onnx.defs.get_schema(node.op_type, version) for version in (opset, _OPSET))
        for one in [one for one in node.attribute if one.name not in old.attributes]:
            node.attribute.remove(one)
            # the number of outputs is seen
            if one.name != "num_outputs" and value_of(one) != value_of(new.attributes[one.name].default_value):
                refused.append(f"{node.op_type} with {one.name}")
        for name, formal in [*zip(node.input, new.inputs, strict=False)][old.max_input :]:
            if name in constants and formal.name in old.attributes:
                values = onnx.numpy_helper.to_array(constants[name]).tolist()
                node.attribute.append(onnx.helper.make_attribute(formal.name, values))
            elif name:
                refused.append(f"{node.op_type} with {formal.name}")
        del node.input[old.max_input :]
    return refused
