"""How the commands print: columns and lines within the terminal's width, JSON, and progress on standard error."""

import json
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from sepconv.errors import ArgumentValueError

_WHOLE: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}  # a path or a command stays whole


@contextmanager
def progress() -> Iterator[Callable[[str, float], None]]:
    """A bar on standard error that shows the step at hand; none where that is no terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=None)

        def tell(step: str, share: float) -> None:
            bar.update(task, description=step, completed=share, total=1.0 if share else None)

        yield tell


def print_json(facts: dict[str, Any], file: Path | None = None) -> None:
    """Facts as JSON, on standard output or in a file."""
    text = json.dumps(facts, indent=2, allow_nan=False)
    if file is None or str(file) == "-":
        typer.echo(text)
        return
    try:
        file.write_text(text + "\n")
    except OSError as error:
        raise ArgumentValueError(f"`--json` is {str(file)!r}, which cannot be written: {error.strerror}.") from None


def print_section(title: str) -> None:
    Console(highlight=False, markup=False).print(title, style="bold")


def print_rows(rows: list[tuple[str, str]]) -> None:
    """Names and values in two columns, the values wrapped at the terminal's width."""
    margin = 4 + max(len(name) for name, _ in rows)
    for name, value in rows:
        first = f"  {name}".ljust(margin) if name else "  "
        typer.echo(
            textwrap.fill(value, Console().width, initial_indent=first, subsequent_indent=" " * len(first), **_WHOLE)
        )


def print_table(table: Table) -> None:
    """A table whose cells are plain text."""
    Console(highlight=False, markup=False).print(table)


def print_wrapped(text: str, indent: int) -> None:
    """Lines of text, each wrapped to the terminal's width, what follows indented."""
    width = Console().width
    for line in text.splitlines():
        own = len(line) - len(line.lstrip())
        typer.echo(textwrap.fill(line, width, subsequent_indent=" " * (own + indent), **_WHOLE) if line.strip() else "")
