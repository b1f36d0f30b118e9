"""The errors that sepconv raises on purpose, and its warnings.

Every text names the argument in backticks, what came, what is expected, and what to do.
"""


class SepconvError(Exception):
    """The root of every error that sepconv raises on purpose."""


class ArgumentValueError(SepconvError, ValueError):
    """A wrong call: an argument has a value that the operation does not take."""


class ArgumentTypeError(SepconvError, TypeError):
    """A wrong call: an argument has a type or a dtype that the operation does not take."""


class UnsupportedError(SepconvError, NotImplementedError):
    """A right call that no backend can run."""


class WarmUpError(SepconvError, RuntimeError):
    """A first call inside a CUDA-graph capture that would have to compile or tune."""


class FuseError(SepconvError, RuntimeError):
    """A rewritten model is used in a way that its rewriting does not allow."""


class SettingError(SepconvError, ValueError):
    """An environment variable has a value that sepconv does not take."""


class CompilerError(SepconvError, RuntimeError):
    """A kernel cannot be compiled or loaded here: no compiler, or one that failed."""


class StoreError(SepconvError, OSError):
    """A folder cannot hold compiled kernels: it cannot be written, or others can write to it."""


class CacheWarning(UserWarning):
    """Compiled kernels are not kept, because the cache cannot be used."""


class BackendWarning(UserWarning):
    """A fast backend cannot be used on this machine; a slower one takes its place."""


def value_error(name: str, came: str, expected: str, hint: str = "") -> ArgumentValueError:
    """The error for an argument of a wrong value, in the one form of all texts."""
    return ArgumentValueError(_text(name, came, expected, hint))


def type_error(name: str, came: str, expected: str, hint: str = "") -> ArgumentTypeError:
    """The error for an argument of a wrong type or dtype, in the one form of all texts."""
    return ArgumentTypeError(_text(name, came, expected, hint))


def _text(name: str, came: str, expected: str, hint: str) -> str:
    return f"`{name}` {came}; expected {expected}." + (f" {hint}" if hint else "")
