"""Other people's models, fused and held against float64: how many pairs, what was left alone and why, how large the error.

    python benchmarks/fused_models.py [NAME ...]

Models of pytorchcv with random weights and random BatchNorm, float32, one random image; needs `pip install pytorchcv==0.0.67`.
An exit code of 1 says that a fused model is outside of its budget: twice the original's error and two roundings.
"""

import csv
import re
import sys
from collections import Counter
from pathlib import Path
from statistics import geometric_mean

import torch
from rich.progress import track

import sepconv
from sepconv.bench import trial
from sepconv.bench.budget import Errors, budget, within
from sepconv.bench.loading import load

# A model's size where it is not its own 224 x 224, and the images of which the typical error (the geometric mean) counts:
# the gates of ghostnet scatter the original's own error by two orders of magnitude from image to image.
MODELS: dict[str, dict[str, object]] = {
    "pytorchcv:mobilenet_w1": {},
    "pytorchcv:fdmobilenet_w1": {},
    "pytorchcv:mobilenetv2_w1": {},
    "pytorchcv:mobilenetv3_large_w1": {},
    "pytorchcv:mnasnet_b1": {},
    "pytorchcv:proxylessnas_cpu": {},
    "pytorchcv:spnasnet": {},
    "pytorchcv:xception": {"size": (299, 299)},
    "pytorchcv:efficientnet_b0": {},
    "pytorchcv:shufflenet_g1_w1": {},
    "pytorchcv:shufflenetv2_w1": {},
    "pytorchcv:darts": {},
    "pytorchcv:ghostnet": {"images": 8},
    "pytorchcv:igcv3_w1": {},
    "pytorchcv:espnetv2_wd2": {},
    "pytorchcv:fastscnn_cityscapes": {"size": (1024, 1024)},
    "sepconv:quartznet5x5": {"shape": (64, 512)},
}
RESULT = Path(__file__).parent / "results" / "fused-models.csv"


def main(names: list[str]) -> int:
    rows = [
        row_of(name, **MODELS.get(name, {})) for name in track(names or list(MODELS), disable=not sys.stderr.isatty())
    ]
    rows += [] if names else [masked_quartznet()]
    if not names:
        RESULT.parent.mkdir(exist_ok=True)
        with RESULT.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    for row in rows:
        print(", ".join(f"{key} {value}" for key, value in row.items() if key not in ("torch", "sepconv")))
    return 0 if all(row["ok"] for row in rows) else 1


def row_of(name: str, images: int = 1, **sizes: object) -> dict[str, object]:
    """One model: its pairs, and the typical errors of the original and of the fused model."""
    trials = []
    for seed in range(images):
        torch.manual_seed(0)  # the same weights for each image
        request = trial.Request(torch.device("cpu"), batch=1, seed=seed, check_only=True, **sizes)  # type: ignore[arg-type]
        trials.append(trial.run(load(name), request))
    original, fused = (
        Errors(*(geometric_mean(max(e, 1e-30) for e in column) for column in zip(*errors, strict=True)))
        for errors in ([t.checks[0].original for t in trials], [t.checks[0].fused for t in trials])
    )
    return counts(name, trials[0].report) | {
        "original_error": f"{original.norm:.3e}",
        "fused_error": f"{fused.norm:.3e}",
        "error_ratio": f"{fused.norm / original.norm:.2f}",
        "error_ratio_maximum": f"{fused.maximum / original.maximum:.2f}",
        "ok": within(fused, budget(torch.float32, "ieee", original)),
        "torch": torch.__version__,
        "sepconv": sepconv.__version__,
    }


def masked_quartznet() -> dict[str, object]:
    """The QuartzNet whose convolutions mask the padded frames: nothing may be fused."""
    from pytorchcv.model_provider import get_model

    report = sepconv.scan(get_model("quartznet5x5_en_ls", pretrained=False, from_audio=False).eval())
    nothing = {"original_error": "", "fused_error": "", "error_ratio": "", "error_ratio_maximum": ""}
    versions = {"torch": torch.__version__, "sepconv": sepconv.__version__}
    return counts("pytorchcv:quartznet5x5_en_ls", report) | nothing | {"ok": not report.fused} | versions


def counts(name: str, report: sepconv.Report) -> dict[str, object]:
    reasons = Counter(re.sub(r"`[^`]*\.[^`]*`|'[^']*'", "...", pair.reason) for pair in report.left_alone)
    return {
        "model": name,
        "pairs": len(report.pairs),
        "fused": len(report.fused),
        "left_alone": "; ".join(f"{count} x {reason}" for reason, count in reasons.most_common()),
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
