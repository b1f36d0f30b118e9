"""Depthwise-separable convolutions for PyTorch as one operation, and existing models rewritten to use it."""

from sepconv.errors import FuseError, SepconvError, UnsupportedError, WarmUpError
from sepconv.functional import explain, separable_conv1d, separable_conv2d, separable_conv3d
from sepconv.fuse import Pair, Report, fuse, original_state_dict, scan
from sepconv.nn import SeparableConv1d, SeparableConv2d, SeparableConv3d
from sepconv.ops import decomposition_table
from sepconv.reference import ACTIVATIONS

__version__ = "0.1.0"
__all__ = [
    "ACTIVATIONS",
    "FuseError",
    "Pair",
    "Report",
    "SeparableConv1d",
    "SeparableConv2d",
    "SeparableConv3d",
    "SepconvError",
    "UnsupportedError",
    "WarmUpError",
    "decomposition_table",
    "explain",
    "fuse",
    "original_state_dict",
    "scan",
    "separable_conv1d",
    "separable_conv2d",
    "separable_conv3d",
]
