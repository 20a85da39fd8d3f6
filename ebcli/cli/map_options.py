"""The options of ``eb-saliency`` that choose the maps."""

from ebcli.cli.model_options import PATH, section
from ebcli.cli.parameters import PIXEL, ClassName, Method, Place
from ebcli.models.keywords import COMPARED_METHODS
from ebcli.run.plan_parts import MapOptions

_map = section("Map")

MAP = (
    _map(
        "-t",
        "--target",
        common=True,
        type=ClassName(),
        multiple=True,
        show_default="the most likely",
        help="Explain this class, by index or name; of several that match, the likeliest. For clip/NAME and "
        "open_clip/NAME, any text. Repeatable.",
    ),
    _map(
        "-l",
        "--layer",
        common=True,
        metavar="NAME|input|all",
        multiple=True,
        show_default="the model's own",
        help="Compute the map at this layer. Use 'input' for the pixels, 'all' for one layer per resolution. "
        "Repeatable.",
    ),
    _map(
        "--contrastive/--marginal",
        common=True,
        default=MapOptions.contrastive,
        help="Show what distinguishes the class, or everything that excites it.",
    ),
    _map(
        "--against",
        common=True,
        type=ClassName(),
        multiple=True,
        show_default="the class's own classifier weights, negated",
        help="Compare the target with this class, an index or a name: show what tells the two apart. With "
        "--similar-to, a picture. Repeatable.",
    ),
    _map(
        "--compare-with",
        type=Method(COMPARED_METHODS),
        multiple=True,
        help="Also show this method's map in panels. Repeatable.",
    ),
    _map(
        "--similar-to",
        metavar="PICTURE",
        type=PATH,
        multiple=True,
        show_default=False,
        help="Explain the similarity to this picture, by the features below the classifier. Repeatable.",
    ),
    _map(
        "-k",
        "--top-k",
        common=True,
        metavar="K",
        type=int,
        show_default="1; 20 for an atlas; all for detectors and segmentation",
        help="Explain the K most likely classes.",
    ),
    _map(
        "--above",
        metavar="SCORE",
        type=float,
        show_default="0.01 for segmentation",
        help="Explain every class that scores above SCORE; in segmentation, every class that covers more than that.",
    ),
    _map(
        "--score",
        metavar="SCORE",
        default=MapOptions.score,
        help="Detectors: explain every detection that scores at least SCORE.",
    ),
    _map(
        "--where",
        metavar="X,Y|X,Y,W,H|FILE",
        type=Place(),
        show_default="every detection, or the whole segment",
        help="Segmentation: explain the class at this pixel, or in the bright pixels of the image FILE. Detectors: "
        "explain only the detection nearest to this box, in pixels.",
    ),
    _map(
        "--at",
        metavar="X,Y",
        type=PIXEL,
        help="Print which classes have how much of the evidence at this pixel of each image. Implies --style atlas.",
    ),
    _map(
        "--tiles",
        metavar="N",
        type=int,
        show_default="1 for images more than 2.5 times as long as wide; others are not cut",
        help="Cut large images into overlapping squares, N across the shorter side, and join the squares' maps.",
    ),
    _map(
        "--sufficiency",
        is_flag=True,
        help="Test whether a small part of each image suffices: the part that keeps half of the score if the rest is "
        "blurred, by its first map, that map shuffled, a blob at the center and the gradient. Takes 23 more passes.",
    ),
    _map(
        "--allow-unsupported",
        is_flag=True,
        help="Use ordinary gradients, with a warning, for operations without an excitation rule.",
    ),
)
