"""A row of a benchmark, for tests of what is done with rows."""

from sepconv.bench.report import Row

ROW = Row(
    "A", "2-D, (1, 2) -> 3; x", 1, "cpu x", "float32", "channels_first", "forward", "huge", "sepconv", "eager (default)",
    1.25, 1.0, 1.5, 10, 20, 1e9, 1e12, "FMA", False, 0.1, 0.08, 1e-7, 2e-7, "sepconv 0; torch 1", 0.5,
)  # fmt: skip
