"""Pictures as SVG, legible on light and on dark ground: bars in groups, and rooflines; ours in blue, the others in grey."""

import math
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


# --- a roofline


@dataclass(frozen=True)
class Point:
    """One measurement: what, its FLOPs for each byte, and the FLOPs a second that were reached."""

    name: str
    intensity: float
    rate: float
    ours: bool = False


@dataclass(frozen=True)
class Axes:
    """Logarithmic axes: where a figure lies between the least and the most that are shown."""

    x: tuple[float, float]
    y: tuple[float, float]

    def across(self, intensity: float) -> float:
        return MARGIN + (PLOT_WIDTH - MARGIN - SIDE) * _share(intensity, *self.x)

    def down(self, rate: float) -> float:
        return HEADROOM + PLOT_HEIGHT * (1 - _share(rate, *self.y))


MARGIN, SIDE, HEADROOM, PLOT_WIDTH, PLOT_HEIGHT, FOOT = 70, 20, 130, 720, 300, 50


def roofline(title: str, copy: float, arithmetic: float, points: list[Point]) -> str:
    """The ceilings as a line over FLOPs a byte (both logarithmic), and below it the points; their names stand above."""
    lowest = min(point.rate for point in points)
    intensities = [point.intensity for point in points]
    axes = Axes((min(intensities) / 1.5, max(intensities) * 1.5), (lowest / 1.5, arithmetic * 1.1))
    out = [*_ceilings(axes, copy, arithmetic), *_ticks(axes)]
    for intensity, names in _columns(points).items():
        x, roof = axes.across(intensity), axes.down(min(copy * intensity, arithmetic))
        for line, name in enumerate(names):
            where = f"{x + 4 + 14 * (line - (len(names) - 1) / 2):.1f} {roof - 12:.1f}"
            out.append(f'<text transform="translate({where}) rotate(-90)">{escape(name)}</text>')
    for point in sorted(points, key=lambda p: p.ours):
        kind = "ours" if point.ours else "peer"
        where = f'cx="{axes.across(point.intensity):.1f}" cy="{axes.down(point.rate):.1f}"'
        out.append(f'<circle class="{kind}" {where} r="5"><title>{escape(point.name)}</title></circle>')
    for index, (kind, text) in enumerate((("ours", "sepconv"), ("peer", "the best peer"))):
        y = HEADROOM + PLOT_HEIGHT - 30 + 18 * index
        out.append(f'<circle class="{kind}" cx="{PLOT_WIDTH - 150}" cy="{y - 4}" r="5"/>')
        out.append(f'<text x="{PLOT_WIDTH - 138}" y="{y}">{text}</text>')
    height = HEADROOM + PLOT_HEIGHT + FOOT
    size = f'width="{PLOT_WIDTH}" height="{height}" viewBox="0 0 {PLOT_WIDTH} {height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">'
    return "\n".join([head, f"<title>{escape(title)}</title>", STYLE, *out, "</svg>"]) + "\n"


def _ceilings(axes: Axes, copy: float, arithmetic: float) -> list[str]:
    """The slope of the copy up to the ridge, and the level of the arithmetic behind it."""
    ridge = min(max(arithmetic / copy, axes.x[0]), axes.x[1])
    corners = [(x, min(copy * x, arithmetic)) for x in (axes.x[0], ridge, axes.x[1])]
    path = " ".join(f"{axes.across(x):.1f},{axes.down(y):.1f}" for x, y in corners)
    return [f'<polyline points="{path}" fill="none" stroke="#8b949e" stroke-width="2"/>']


def _ticks(axes: Axes) -> list[str]:
    """Numbers at powers of two along both axes, and what they are."""
    bottom = HEADROOM + PLOT_HEIGHT
    out = [f'<text x="{PLOT_WIDTH / 2}" y="{bottom + 40}" text-anchor="middle">FLOPs a byte</text>']
    out.append(f'<text x="8" y="{HEADROOM - 12}">TFLOP/s</text>')
    for power in range(11):
        if axes.x[0] <= 2**power <= axes.x[1]:
            out.append(
                f'<text x="{axes.across(2**power):.1f}" y="{bottom + 20}" text-anchor="middle">{2**power}</text>'
            )
        if axes.y[0] <= 2**power * 1e12 <= axes.y[1]:
            y = axes.down(2**power * 1e12)
            out.append(f'<text x="{MARGIN - 12}" y="{y + 4:.1f}" text-anchor="end">{2**power}</text>')
    return out


def _columns(points: list[Point]) -> dict[float, list[str]]:
    """The names of the points at each intensity, each once; intensities within a hundredth count as one."""
    found: dict[float, list[str]] = {}
    for point in points:
        at = next((x for x in found if abs(x / point.intensity - 1) < 0.01), point.intensity)
        names = found.setdefault(at, [])
        if point.name not in names:
            names.append(point.name)
    return found


def _share(value: float, least: float, most: float) -> float:
    return math.log(value / least) / math.log(most / least)
