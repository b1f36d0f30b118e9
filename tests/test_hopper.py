"""The configurations of the CUDA kernel: what they ask of shared memory, without a GPU."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from cuda_cases import A_LAST, PRECISIONS, SHAPES, UNITS, A, B, Shape
from hypothesis import given
from hypothesis import strategies as st

from sepconv.backends.cuda import CudaBackend
from sepconv.device import Device
from sepconv.problem import CHANNELS_FIRST, CHANNELS_LAST
from sepconv.tuning import hopper, hopper_candidates, nearest, patches
from sepconv.tuning.hopper import CudaConfig


def check(shape: Shape, dtype: torch.dtype, precision: str) -> None:
    problem = shape.problem(dtype, precision)
    config = hopper_candidates.configuration(problem, UNITS)
    if config is None:
        smallest = CudaConfig(1, 128, False, 2, 2, 1, 1, beside=True, tile=64)
        cannot_load = not (hopper.copied_in_rows(problem) or hopper.can_gather(problem))
        streams = shape.channels * dtype.itemsize % 16 == 0 and shape.layout == CHANNELS_FIRST
        too_many = not streams and (shape.outputs > 128 or shape.channels > 64)
        assert cannot_load or too_many or hopper.shared_bytes(problem, smallest) > patches.SHARED_BYTES / 3
        return
    assert config.weight_stages or config.cluster * config.outputs >= shape.outputs
    assert hopper.legal(problem, config)
    chunks = hopper.own_channels(problem, config) // hopper.chunk(problem) * config.cluster
    all_outputs = config.weight_stages > 0 and not config.beside
    stays = all_outputs or config.outputs > hopper.PASS  # the operand of a tile, for several passes
    assert config.slots >= chunks if stays else config.slots % config.cluster == 0
    assert config.slots >= config.cluster
    assert config.slots > 1 or chunks == 1  # else the product waits for a chunk that waits for it
    assert config.stages >= 2
    boxes = config.tile * dtype.itemsize // 128
    assert config.staged == 0 or boxes % config.staged == 0


@pytest.mark.parametrize(("dtype", "precision"), PRECISIONS, ids=str)
@pytest.mark.parametrize("shape", [*SHAPES, A, A_LAST, B], ids=str)
def test_a_configuration_fits(shape: Shape, dtype: torch.dtype, precision: str) -> None:
    check(shape, dtype, precision)


@given(st.integers(1, 600), st.integers(1, 700), st.integers(1, 9), st.integers(1, 17), st.sampled_from(PRECISIONS))
def test_any_configuration_fits(
    channels: int, outputs: int, kernel_h: int, kernel_w: int, kind: tuple[torch.dtype, str]
) -> None:
    check(replace(A, channels=channels, outputs=outputs, kernel=(kernel_h, kernel_w)), *kind)


CHANNELS, SIDES = st.integers(1, 260), st.integers(1, 80)


@given(CHANNELS, CHANNELS, SIDES, SIDES, st.sampled_from((1, 2, 3)), st.sampled_from((1, 2)))
def test_any_channels_fit_in_16_bits_with_channels_last(
    channels: int, outputs: int, height: int, width: int, kernel: int, stride: int
) -> None:
    pad = (kernel // 2, kernel // 2)
    shape = Shape(1, 8 * channels, 8 * outputs, (height, width), (kernel, kernel), (pad, pad), layout=CHANNELS_LAST)
    shape = replace(shape, stride=(stride, stride))
    check(shape, torch.float16, "ieee")
    config = hopper_candidates.configuration(shape.problem(torch.float16, "ieee"), UNITS)
    assert config is not None
    assert config.rolls or config.patch[0] * config.patch[1] <= hopper.GROUP_ROWS


def test_it_says_what_it_is() -> None:
    one, four = CudaConfig(1, 128, True, 6, 8, 4), CudaConfig(4, 128, False, 3, 8, 0, tile=64)
    stream = CudaConfig(1, 128, False, 4, 16, 0, 3)
    assert str(one) == (
        "single blocks of 128 output channels, tiles of 128 pixels, rolling rows, 6 stages, 8 slots, 4 boxes staged"
    )
    assert str(four) == (
        "clusters of 4 blocks of 128 output channels, tiles of 64 pixels, whole windows, 3 stages, 8 slots, "
        "0 boxes staged"
    )
    assert str(stream) == (
        "single blocks of all output channels, 3 parts of weights that stream, tiles of 128 pixels, whole windows, "
        "4 stages, 16 slots, 0 boxes staged"
    )


def test_the_terms_follow_precision_and_dtype() -> None:
    found = [hopper.terms(A.problem(dtype, precision)) for dtype, precision in PRECISIONS]
    assert found == [3, 2, 1, 1]
    assert hopper.terms(A.problem(torch.float32, "tf32")) == 2


def test_few_tiles_are_spread_over_the_output_channels_and_many_are_not() -> None:
    problem = replace(B, batch=1, size=(800,)).problem(torch.float32, "high")
    one, many = (hopper_candidates.configuration(replace(problem, batch=batch), UNITS) for batch in (1, 32))
    assert one is not None
    assert many is not None
    assert one.beside
    assert not many.beside


def test_the_nearest_measured_problem_decides() -> None:
    fast = replace(A, batch=64, size=(112, 112)).problem(torch.float32, "high")
    slow = replace(A_LAST, batch=64, channels=1536, outputs=2048, size=(10, 10)).problem(torch.float16, "ieee")
    found = [nearest.nearest(problem) for problem in (fast, slow)]
    assert [one is not None and one.ratio < 1 for one in found] == [True, False]
    assert nearest.nearest(replace(fast, layout=CHANNELS_LAST)) is None  # nothing like it was measured
    far = replace(A, batch=100_000, channels=1, outputs=1, size=(1, 1)).problem(torch.float32, "high")
    assert nearest.nearest(far) is None


def test_a_table_that_is_written_reads_the_same(tmp_path: Path) -> None:
    rows = list(nearest.measured(nearest.TABLE))
    assert len(rows) > 100
    nearest.write(rows, tmp_path / "table.csv")
    assert (tmp_path / "table.csv").read_bytes() == nearest.TABLE.read_bytes()


@given(st.integers(2, 60), st.integers(1, 40), st.sampled_from([64, 128]))
def test_patches_that_flow_hold_every_pixel_of_their_tiles(height: int, width: int, tile: int) -> None:
    problem = Shape(1, 32, 32, (height, width), (3, 3), ((1, 1), (1, 1))).problem(torch.float32, "high")
    for patch in patches.for_gathering(problem, tile):
        pitch, count = patches.pitch(patch), patches.gathered_count(problem, patch, tile)
        if not patches.flows(patch, tile):
            continue
        across = -(-width // patch[1])
        assert count * tile >= across * height * pitch > (count - across) * tile
        last_rows = [(first % pitch + tile - 1) // pitch for first in range(0, count // across * tile, tile)]
        assert max(last_rows) < patch[0]


def test_where_nothing_near_was_measured_few_tiles_are_for_the_kernel_in_float32_only() -> None:
    gpu = Device("cuda", "a GPU", 0, (9, 0), UNITS, 40 << 30)
    tokens = Shape(1, 2048, 64, (24,), (3,), ((1, 1),))
    assert CudaBackend().slower(tokens.problem(torch.float32, "high"), gpu) == []
    assert "too few" in CudaBackend().slower(tokens.problem(torch.float16, "ieee"), gpu)[0]
    many = Shape(512, 2048, 64, (19,), (3,), ((1, 1),))
    assert CudaBackend().slower(many.problem(torch.float32, "high"), gpu) != []
