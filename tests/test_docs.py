"""What the docs say of the code, held against the code."""

import re
from pathlib import Path

import sepconv

ROOT = Path(__file__).parent.parent
SOURCES = Path(sepconv.__file__).parent
KERNELS = (ROOT / "docs" / "kernels.md").read_text()


def plain(text: str) -> str:
    """The words of a text: without the marks of comments and quotations, and on one line."""
    return " ".join(re.sub(r"^\s*(//|#|>)", "", text, flags=re.MULTILINE).split())


def test_what_the_page_on_kernels_quotes_stands_in_the_sources() -> None:
    files = [*(SOURCES / "kernels" / "cpu").glob("*.h"), *(SOURCES / "backends").glob("*.py")]
    sources = [plain(re.sub(r"^.*?; *//", "//", path.read_text(), flags=re.MULTILINE)) for path in files]
    quoted = [plain(quote) for quote in re.findall(r"(?:^>.*\n)+", KERNELS, re.MULTILINE)]
    assert len(quoted) > 5
    for quote in quoted:
        assert any(quote in source for source in sources), f"no source says: {quote}"


def test_the_page_on_kernels_names_files_that_exist() -> None:
    named = re.findall(r"`((?:\w+/)?\w+\.(?:h|cpp|cuh|cu|py))`", KERNELS)
    assert named
    for name in named:
        assert any(SOURCES.rglob(name)) or (SOURCES / name).exists() or (ROOT / name).exists(), name


def test_links_lead_somewhere() -> None:
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")):
        for link in re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name}: {link}"
