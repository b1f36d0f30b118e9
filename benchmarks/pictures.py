"""Pictures as SVG, legible on light and on dark ground: bars in groups, ours in blue, the others in grey."""

from dataclasses import dataclass
from html import escape

WIDTH, LEFT, RIGHT, TOP = 720, 170, 290, 12
BAR, STEP, GAP = 14, 16, 12
STYLE = (
    "<style>text{font:13px system-ui,sans-serif;fill:#1f2328}.peer{fill:#afb8c1}.ours{fill:#0969da}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.peer{fill:#6e7681}.ours{fill:#4493f8}}</style>"
)


@dataclass(frozen=True)
class Bar:
    """One bar: its length in the unit of its group, and what stands behind it."""

    value: float
    text: str
    ours: bool = False


def bars(title: str, groups: dict[str, list[Bar]]) -> str:
    """A picture of bars; each group has its name on the left and a scale of its own."""
    out, y = [], TOP
    for name, group in groups.items():
        middle = y + STEP * len(group) / 2 + 3
        out.append(f'<text x="{LEFT - 10}" y="{middle:g}" text-anchor="end">{escape(name)}</text>')
        scale = (WIDTH - LEFT - RIGHT) / max(bar.value for bar in group)
        for bar in group:
            length = bar.value * scale
            kind = "ours" if bar.ours else "peer"
            out.append(f'<rect class="{kind}" x="{LEFT}" y="{y}" width="{length:.1f}" height="{BAR}"/>')
            out.append(f'<text x="{LEFT + length + 8:.1f}" y="{y + BAR - 2}">{escape(bar.text)}</text>')
            y += STEP
        y += GAP
    size = f'width="{WIDTH}" height="{y}" viewBox="0 0 {WIDTH} {y}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">'
    return "\n".join([head, f"<title>{escape(title)}</title>", STYLE, *out, "</svg>"]) + "\n"
