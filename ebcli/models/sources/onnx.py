"""Networks in ONNX files: ``net.onnx``. They are data: operators are looked up among those of the converter."""

import ast
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.fx import GraphModule

from ebcli.errors import ConfigurationError, first_line, import_optional
from ebcli.files.paths import safe_open
from ebcli.models.keywords import SIGMOID, SOFTMAX
from ebcli.models.onnx_graph import converted, refusal
from ebcli.models.sources.base import NetworkFile

_SCORES = {"Softmax": SOFTMAX, "LogSoftmax": SOFTMAX, "Sigmoid": SIGMOID}
_LONGEST = 1 << 20  # characters of class names
_READ_AGAIN = 4  # times; tensors can share values


class Onnx(NetworkFile):
    """A network in an ONNX file, converted to PyTorch. Its layers have the names of the file's nodes."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        import_optional("onnx2torch")
        self._onnx, self._data = import_optional("onnx"), dict[Path, int]()  # bytes that were read of files
        self._model = self._read()
        graph, types = self._model.graph, self._onnx.TensorProto
        weights = {tensor.name for tensor in graph.initializer}
        inputs = [one for one in graph.input if one.name not in weights]
        if len(inputs) != 1:
            names = ", ".join(one.name for one in inputs)
            raise ConfigurationError(f"{name} has {len(inputs)} inputs ({names}), but must have one, the images")
        kind = inputs[0].type.tensor_type
        if kind.elem_type not in (types.FLOAT, types.FLOAT16):
            found = types.DataType.Name(kind.elem_type).lower()
            raise ConfigurationError(f"{name} takes images of type {found}: export it for images of type float")
        shape = [dim.dim_value or dim.dim_param or "?" for dim in kind.shape.dim]
        self._has_channels_last = _has_channels_last(shape)
        if self._has_channels_last:
            shape.insert(1, shape.pop())
        rank, self._scores = self._use_logits()
        self.take(shape, rank)

    def network(self) -> nn.Module:
        try:
            net = _renamed(*converted(self._model, self._load_data)).float()
        except ConfigurationError:
            raise
        except Exception as error:  # a file can be wrong in any way
            is_own = isinstance(error, NotImplementedError)
            reason = first_line(error) if is_own else "it is not valid, or the converter does not know how to"
            raise ConfigurationError(
                f"cannot convert {self.name} ({reason}): export it with torch.export to a .pt2 file"
            ) from error
        if self._has_channels_last:
            net.register_forward_pre_hook(lambda _net, images: images[0].movedim(1, -1))
            net.register_forward_hook(lambda _net, _images, made: made.movedim(-1, 1) if made.ndim == 4 else made)
        net.scores, net.categories = self._scores, self._class_names()
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
            raise ConfigurationError(f"{self.name} is no ONNX file, or is truncated: export it again") from error
        if not (model.graph.node and model.graph.output):
            raise ConfigurationError(f"{self.name} is no ONNX file: it has no network")
        if any(node.op_type == "NonMaxSuppression" for node in model.graph.node):
            raise ConfigurationError(f"{self.name} has non-maximum suppression in it: export it without")
        if found := refusal(model):
            raise ConfigurationError(f"{self.name} has {found}: export it without")
        for one in model.opset_import:
            if one.domain == "ai.onnx":  # the long name of the usual operators
                one.domain = ""
        return model

    def _load_data(self, model: Any) -> None:
        """Read the tensors that are in other files."""
        attributes = (one for node in model.graph.node for one in node.attribute)
        for tensor in (*model.graph.initializer, *(one.t for one in attributes if one.HasField("t"))):
            if tensor.data_location == self._onnx.TensorProto.EXTERNAL:
                entry = {one.key: one.value for one in tensor.external_data}
                tensor.raw_data = self._external(entry.pop("location", ""), **entry)
                tensor.data_location = self._onnx.TensorProto.DEFAULT
                del tensor.external_data[:]

    def _external(self, location: str, offset: str = "0", length: str | None = None, checksum: str = "") -> bytes:
        """What a file of the same directory has of a tensor."""
        file = self.path.parent / location
        # the cache of the Hugging Face hub has links to files of one directory
        homes = {os.path.realpath(self.path.parent), str(Path(os.path.realpath(self.path)).parent)}
        is_inside = any(Path(os.path.realpath(file)).is_relative_to(home) for home in homes)
        if Path(location).is_absolute() or ".." in Path(location).parts or not is_inside:
            raise ConfigurationError(f"{self.name} has data in {location!r}, which leads out of its directory")
        try:
            with safe_open(file) as stream:
                there = os.fstat(stream.fileno()).st_size
                size = there - int(offset) if length is None else int(length)
                self._data[file] = self._data.get(file, 0) + size
                if self._data[file] > _READ_AGAIN * there:
                    raise ConfigurationError(f"{self.name} reads '{file}' again and again: export it again")
                stream.seek(int(offset))
                found = stream.read(size) if 0 <= size <= there - int(offset) else None
        except OSError as error:
            raise ConfigurationError(f"cannot read '{file}', the data of {self.name}: {error.strerror}") from error
        if found is None:
            raise ConfigurationError(f"'{file}', the data of {self.name}, is truncated: copy it again")
        return found

    def _use_logits(self) -> tuple[int, str | None]:
        """Let the network end before a softmax or a sigmoid.

        Returns:
            The number of dimensions of the output, and what makes scores of the logits.
        """
        graph, scores = self._model.graph, None
        made = {name: node for node in graph.node for name in node.output}
        ranks = {one.name: len(one.type.tensor_type.shape.dim) for one in graph.output}
        name = next((name for name, rank in ranks.items() if rank in (2, 3, 4)), graph.output[0].name)
        rank = ranks[name]
        for node in reversed(graph.node):
            if node.op_type == "Identity" and name in node.output:
                name = node.input[0]
        if name in made and made[name].op_type in _SCORES and rank in (2, 4):
            end = made[name]
            axis = next((one.i for one in end.attribute if one.name == "axis"), -1) % rank
            if end.op_type == "Sigmoid" or axis == (rank - 1 if self._has_channels_last else 1):
                name, scores = end.input[0], _SCORES[end.op_type]
        del graph.output[:]
        graph.output.append(self._onnx.helper.make_empty_tensor_value_info(name))
        return rank, scores

    def _class_names(self) -> list[str] | None:
        """Those in the metadata, as Ultralytics writes them."""
        text = next((one.value for one in self._model.metadata_props if one.key == "names"), "")
        try:
            names = ast.literal_eval(text[:_LONGEST])
            found = [names[key] for key in sorted(names)] if isinstance(names, dict) else names
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            return None
        return found if isinstance(found, list) and all(isinstance(one, str) for one in found) else None


def _has_channels_last(shape: Sequence[Any]) -> bool:
    """Whether a shape is (B, H, W, C): there are fewer channels than pixels a side."""
    if len(shape) != 4 or not isinstance(shape[3], int):
        return False
    return not isinstance(shape[1], int) or shape[3] < shape[1]


def _renamed(net: GraphModule, names: Mapping[str, str]) -> Any:
    """The network with other names of modules, which may contain dots, and products with weights as linear layers."""
    parts: dict[str, Any] = {}
    for node in net.graph.nodes:
        if node.op == "get_attr":
            parts[node.target] = net.get_buffer(node.target)
        if node.op == "call_module":
            part, name = net.get_submodule(node.target), names.get(node.target, "")
            weights = parts.get(node.args[1].target) if type(part).__name__ == "OnnxMatMul" else None
            if isinstance(weights, Tensor) and weights.ndim == 2:  # the product would be one of batches
                part = nn.Linear(weights.shape[0], weights.shape[1], bias=False, device="meta")
                part.weight, node.args = nn.Parameter(weights.T), node.args[:1]
            if all(name.split(".")) and name not in parts:
                node.target = name
            parts[node.target] = part
    return GraphModule(parts, net.graph)
