# The names that the package offers, for type checkers; the table in __init__.py has the same

from ebcli.drawing.api import draw_map as draw_map
from ebcli.eb import ExcitationMode as ExcitationMode
from ebcli.eb import ExcitationResult as ExcitationResult
from ebcli.eb import LinearMap as LinearMap
from ebcli.eb import check_rule as check_rule
from ebcli.eb import disable as disable
from ebcli.eb import enable as enable
from ebcli.eb import excitation_backprop as excitation_backprop
from ebcli.eb import excitation_mode as excitation_mode
from ebcli.eb import pass_through as pass_through
from ebcli.eb import residual_sum as residual_sum
from ebcli.eb import rule as rule
from ebcli.eb import unregister as unregister
from ebcli.eb import weighted_sum as weighted_sum
from ebcli.errors import ConfigurationError as ConfigurationError
from ebcli.errors import EbcliError as EbcliError
from ebcli.errors import ImageError as ImageError
from ebcli.errors import LayerError as LayerError
from ebcli.errors import NonFiniteError as NonFiniteError
from ebcli.errors import OutputError as OutputError
from ebcli.errors import RuleError as RuleError
from ebcli.errors import UnsupportedOpError as UnsupportedOpError
from ebcli.methods.call import MethodCall as MethodCall
from ebcli.methods.call import MethodMaps as MethodMaps
from ebcli.methods.table import method as method
from ebcli.models import Candidates as Candidates
from ebcli.models import Detection as Detection
from ebcli.models import DetectionScores as DetectionScores
from ebcli.models import LoadedModel as LoadedModel
from ebcli.models import ModelSource as ModelSource
from ebcli.models import Preprocessing as Preprocessing
from ebcli.models import default_layer as default_layer
from ebcli.models import detections as detections
from ebcli.models import layers as layers
from ebcli.models import load_model as load_model
from ebcli.models import model_names as model_names
from ebcli.run.ask import Answer as Answer
from ebcli.run.ask import ask as ask
from ebcli.run.explain import explain as explain
from ebcli.run.explain import quantus_explain as quantus_explain
from ebcli.run.saliency import Saliency as Saliency
from ebcli.run.watch import Watch as Watch

from . import captum as captum

__version__: str
