# The names that the package offers, for type checkers; the table in __init__.py has the same

from ebcli.models.classes import matching_classes as matching_classes
from ebcli.models.classes import read_class_names as read_class_names
from ebcli.models.classes import resolve_class as resolve_class
from ebcli.models.detection import Candidates as Candidates
from ebcli.models.detection import Detection as Detection
from ebcli.models.detection import DetectionScores as DetectionScores
from ebcli.models.detection import detections as detections
from ebcli.models.loaded import LoadedModel as LoadedModel
from ebcli.models.loading import load_model as load_model
from ebcli.models.names import model_names as model_names
from ebcli.models.network_layers import Layer as Layer
from ebcli.models.network_layers import default_layer as default_layer
from ebcli.models.network_layers import layer_per_resolution as layer_per_resolution
from ebcli.models.network_layers import layers as layers
from ebcli.models.network_layers import resolve_layer as resolve_layer
from ebcli.models.sources.base import ModelSource as ModelSource
from ebcli.models.spec import ModelSpec as ModelSpec
from ebcli.models.spec import Preprocessing as Preprocessing
