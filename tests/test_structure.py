"""The shape of the package: imports go one way, importing is light and starts nothing, every public name is described."""

import ast
import inspect
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import sepconv

ROOT = Path(sepconv.__file__).parent
# Each room may import those before it, and its own files. "__init__" is the top of the package.
ORDER = (
    "errors",
    "settings",
    "problem",
    "device",
    "reference",
    "kernels",
    "jit",
    "tuning",
    "backends",
    "dispatch",
    "plain",
    "shortcuts",
    "ops",
    "arguments",
    "functional",
    "nn",
    "sources",
    "tracing",
    "steps",
    "chains",
    "folding",
    "fuse",
    "__init__",
    "words",
    "console",
    "doctor",
    "bench",
    "cli",
    "__main__",
)
FILES = sorted(ROOT.rglob("*.py"))


def _room(path: Path) -> str:
    first = path.relative_to(ROOT).parts[0]
    return first.removesuffix(".py")


def _is_room(name: str) -> bool:
    return (ROOT / f"{name}.py").exists() or (ROOT / name).is_dir()


def _imported_rooms(path: Path) -> Iterator[str]:
    """The rooms that a file imports, inside of functions too."""
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            names = [node.module or ""]
            if node.module == "sepconv":
                names = [f"sepconv.{a.name}" if _is_room(a.name) else "sepconv" for a in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] == "sepconv":
                yield parts[1] if len(parts) > 1 else "__init__"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_one_way(path: Path) -> None:
    room = _room(path)
    assert room in ORDER, f"{room} has no place in the order of the rooms"
    for imported in _imported_rooms(path):
        assert imported in ORDER, f"{path.name} imports {imported}, which has no place in the order of the rooms"
        if imported != room:
            assert ORDER.index(imported) < ORDER.index(room), f"{room} imports {imported}, which is above it"


def test_the_reader_of_imports_finds_them() -> None:
    found = {_room(path): set(_imported_rooms(path)) for path in FILES}
    assert {"backends", "device", "errors", "problem", "settings"} <= found["dispatch"]
    assert "dispatch" in found["ops"]


def test_one_file_alone_names_torch_library() -> None:
    names = [path.name for path in FILES if "torch.library" in path.read_text() and "import torch" in path.read_text()]
    assert names == ["ops.py"]


def test_the_top_of_the_package_holds_names_only() -> None:
    tree = ast.parse((ROOT / "__init__.py").read_text())
    assert all(isinstance(node, (ast.Expr, ast.ImportFrom, ast.Assign)) for node in tree.body)
    assert sorted(sepconv.__all__) == sorted(
        name for name in vars(sepconv) if not name.startswith("_") and not inspect.ismodule(getattr(sepconv, name))
    )


_IMPORT = """
import json, sys, time
import torch
before = set(sys.modules)
files = len(__import__("os").listdir("/proc/self/fd")) if sys.platform == "linux" else 0
threads = __import__("threading").active_count()
start = time.perf_counter()
import sepconv
took = time.perf_counter() - start
print(json.dumps({
    "ms": took * 1e3,
    "new": sorted(set(sys.modules) - before),
    "files": (len(__import__("os").listdir("/proc/self/fd")) if sys.platform == "linux" else 0) - files,
    "threads": __import__("threading").active_count() - threads,
    "cuda": torch.cuda.is_initialized(),
}))
"""


def _imports(most: int) -> Iterator[dict[str, object]]:
    for _ in range(most):
        done = subprocess.run([sys.executable, "-c", _IMPORT], capture_output=True, text=True, check=True)
        yield json.loads(done.stdout)


def test_importing_is_light() -> None:
    best = float("inf")
    for facts in _imports(5):
        heavy = {
            "typer",
            "rich",
            "click",
            "onnx",
            "onnxscript",
            "onnxruntime",
            "numpy",
            "hypothesis",
            "triton",
            "cuda",
            "openvino",
        }
        assert not heavy & {name.split(".")[0] for name in facts["new"]}
        assert not any(name.startswith(("torch._dynamo", "torch._inductor", "torch.onnx.")) for name in facts["new"])
        assert not facts["cuda"]
        assert facts["files"] == facts["threads"] == 0
        best = min(best, facts["ms"])
        if best < 60:
            break
    assert best < 60, f"importing sepconv after torch takes {best:.0f} ms"


@pytest.mark.parametrize("name", sepconv.__all__)
def test_every_public_name_is_described(name: str) -> None:
    thing = getattr(sepconv, name)
    if not callable(thing):
        return
    text = inspect.getdoc(thing)
    assert text
    assert text.split("\n")[0].rstrip().endswith((".", ":", ";")) or "." in text.split("\n\n")[0]
    assert "TODO" not in text
    methods = [m for key, m in vars(thing).items() if inspect.isfunction(m) and not key.startswith("_")]
    assert all(inspect.getdoc(method) for method in methods)


def test_every_file_says_what_it_is() -> None:
    for path in FILES:
        text = ast.get_docstring(ast.parse(path.read_text()))
        assert text, path


def test_the_functions_share_one_signature() -> None:
    functions = (sepconv.separable_conv1d, sepconv.separable_conv2d, sepconv.separable_conv3d)
    signatures = [inspect.signature(function) for function in functions]
    assert signatures[0] == signatures[1] == signatures[2]
    assert list(signatures[0].parameters) == [n for n in inspect.signature(sepconv.explain).parameters if n != "device"]
    keywords = [p.name for p in signatures[0].parameters.values() if p.kind is p.KEYWORD_ONLY]
    assert keywords == ["depthwise_activation", "pointwise_activation", "residual", "precision"]
