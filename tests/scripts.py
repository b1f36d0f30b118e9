"""The scripts of the repository as modules for a test: they lie in folders that are no packages."""

import contextlib
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parent.parent


@contextlib.contextmanager
def imported(folder: str, *names: str) -> Iterator[dict[str, ModuleType]]:
    """The modules of these names from a folder of the repository, forgotten again at the end with what they import of it."""
    place = str(ROOT / folder)
    sys.path.insert(0, place)
    try:
        yield {name: importlib.import_module(name) for name in names}
    finally:
        sys.path.remove(place)
        own = [name for name, module in sys.modules.items() if str(getattr(module, "__file__", "")).startswith(place)]
        for name in own:
            del sys.modules[name]
