"""Values that options accept: words in place of weights, layers, fits and scores."""

BUNDLED = "efficientnet_lite0"
DEFAULT, UNTRAINED = "DEFAULT", "none"  # weights of any model
FACTORY = "factory"  # the weights that a factory returned, which are perhaps random
IN_MEMORY = "in memory"  # the weights of a network that was given as an object
IN_FILE = "file"  # the weights that are in the file of a network
ALL, INPUT = "all", "input"  # accepted in place of a layer name
OF_INPUT = f"{INPUT}:"  # before the name of one of several inputs
BASELINES = ("blur", "mean", "noise")  # in place of removed pixels
FITS = CROP, SQUASH, PAD, WHOLE = (
    "crop",
    "squash",
    "pad",
    "whole",
)  # how images are fitted into the network's input
SCORES = SOFTMAX, SIGMOID, RAW = "softmax", "sigmoid", "raw"  # how logits become scores
TASKS = CLASSIFICATION, DETECTION, SEGMENTATION, VIDEO = (
    "classification",
    "detection",
    "segmentation",
    "video",
)
VALUES = "values"  # of networks that return numbers instead of the logits of classes
VALUE_MAPS = "maps of values"  # of those that return such numbers for each pixel
WORDS = "words"  # what a vision-language model says, which only the command ask explains
OWN_TASKS: set[str] = set()  # registered beside these, see ebcli/run/tasks/task.py
