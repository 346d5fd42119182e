"""PRC against a plain loop over scipy, on data with and without ties, and the rules for edge cases."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.spatial.transform import Rotation
from scipy.stats import rankdata, spearmanr

from actionpiece.distance import PhysicalDistance
from actionpiece.errors import ActionPieceError
from actionpiece.metrics import prc as module
from actionpiece.metrics.prc import average_ranks, prc
from actionpiece.space import ActionSpace, Group
from conftest import aloha_like, smooth
from conftest import libero_like as libero_chunks_of

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks" / "baselines"))
from prc_scipy import prc_scipy

LIBERO = ActionSpace.preset("libero")


def libero_like(n: int, seed: int = 0) -> np.ndarray:
    return libero_chunks_of(n, steps=3, seed=seed)  # the oracle takes its time over steps


def noisy(x: np.ndarray, size: float, seed: int = 0) -> np.ndarray:
    return x + np.random.default_rng(seed).normal(0, size, x.shape).astype(x.dtype)


def grid(n: int, levels: int, columns: int = 7, steps: int = 2, seed: int = 0) -> np.ndarray:
    """Chunks on a coarse grid: many distances are exactly equal."""
    values = np.random.default_rng(seed).integers(0, levels, (n, steps, columns)) / 4.0
    if columns == 7:
        values[..., 6] = np.where(values[..., 6] > 0, 1.0, -1.0)
    return values


def one_axis_grid(n: int, levels: int) -> np.ndarray:
    """As `grid`, with turns about one axis only, so that angles are exactly equal too."""
    values = grid(n, levels)
    values[..., 3:5] = 0
    return values


def idle_heavy(n: int, seed: int = 0) -> np.ndarray:
    x = libero_like(n, seed=seed)
    x[np.random.default_rng(seed).random(n) < 0.5] = 0
    return x


def absolute(
    form: str, order: str | None, n: int, size: float, seed: int = 0
) -> tuple[ActionSpace, np.ndarray, np.ndarray]:
    """Targets whose rotations spread widely, up to half turns, and a noisy copy."""
    rng = np.random.default_rng(seed)
    v = rng.normal(0, size, (n, 3, 3))
    unit = None if form == "quaternion" else 1.0
    width = 4 if form == "quaternion" else 3
    groups = (
        Group("translation", (0, 1, 2), unit=1.0, delta=False),
        Group("rotation", tuple(range(3, 3 + width)), unit=unit, delta=False, form=form, order=order),  # type: ignore[arg-type]
    )
    out = []
    for vectors in (v, v + rng.normal(0, 0.2, v.shape)):
        turns = Rotation.from_rotvec(vectors.reshape(-1, 3))
        if form == "quaternion":
            columns = turns.as_quat(scalar_first=order == "wxyz")
        else:
            columns = vectors.reshape(-1, 3) if form == "axis_angle" else turns.as_euler(order)
        place = np.random.default_rng(1).normal(0, 0.01, (n, 3, 3))
        out.append(np.concatenate((place, columns.reshape(n, 3, -1)), -1))
    return ActionSpace(form, groups), out[0], out[1]


def half_turns(n: int) -> tuple[ActionSpace, np.ndarray, np.ndarray]:
    """Axis-angle targets of nearly pi, where the chord says least about the angle, and beyond it."""
    space, x, y = absolute("axis_angle", None, n, 1.0)
    for z in (x, y):
        size = np.linalg.norm(z[..., 3:], axis=-1, keepdims=True)
        z[..., 3:] *= (math.pi + np.random.default_rng(2).normal(0, 1e-3, size.shape)) / size
    return space, x, y


def bridge(n: int) -> np.ndarray:
    x = libero_like(n) * np.array((0.02, 0.02, 0.02, 2, 2, 2, 1), np.float32)
    x[..., 6] = (x[..., 6] + 1) / 2
    return x


def check(space: ActionSpace, x: np.ndarray, y: np.ndarray, k: int, episodes: np.ndarray | None = None) -> Any:
    """Compare with the oracle; returns our result."""
    distance = PhysicalDistance.fit(space, x)
    ours = prc(x, y, distance=distance, k=k, episodes=episodes)
    groups, scales = space.to_dict()["groups"], distance.to_dict()
    pairs = [(ours, None)] if episodes is None else [(ours, None), (ours.across_episodes, episodes)]
    for result, labels in pairs:
        oracle = prc_scipy(x, y, groups, scales, k=k, episodes=labels)
        assert (result.left_out, result.collapsed) == (oracle["left_out"], oracle["collapsed"])
        if math.isnan(oracle["value"]):
            assert math.isnan(result.value)
        else:
            assert abs(result.value - oracle["value"]) < 1e-9
        assert int(np.isnan(result.per_anchor).sum()) == result.left_out
    return ours


def libero_case(make: Callable[..., np.ndarray], n: int, *more: Any, noise: float = 0.05) -> Any:
    x = make(n, *more)
    return LIBERO, x, noisy(x, noise)


CASES: dict[str, Callable[[], tuple[ActionSpace, np.ndarray, np.ndarray]]] = {
    "random": lambda: libero_case(libero_like, 150),
    "barely changed": lambda: libero_case(libero_like, 150, noise=1e-4),
    "grid": lambda: libero_case(grid, 150, 3),
    "one-axis grid": lambda: libero_case(one_axis_grid, 150, 3),
    "binary grid": lambda: libero_case(one_axis_grid, 200, 2),
    "grid decoded to a coarser grid": lambda: (LIBERO, one_axis_grid(150, 5), np.round(one_axis_grid(150, 5))),
    "all identical": lambda: (LIBERO, np.zeros((60, 4, 7)), noisy(np.zeros((60, 4, 7)), 0.1)),
    "half identical": lambda: (
        LIBERO,
        np.concatenate((np.zeros((40, 3, 7)), libero_like(40))),
        noisy(np.concatenate((np.zeros((40, 3, 7)), libero_like(40))), 0.05),
    ),
    "8 copies of each": lambda: (
        LIBERO,
        np.repeat(libero_like(20), 8, 0),
        noisy(np.repeat(libero_like(20), 8, 0), 0.05),
    ),
    "9 copies of each": lambda: (
        LIBERO,
        np.repeat(libero_like(20), 9, 0),
        noisy(np.repeat(libero_like(20), 9, 0), 0.05),
    ),
    "idle-heavy": lambda: libero_case(idle_heavy, 200),
    "idle-heavy, decoded alike": lambda: (LIBERO, idle_heavy(200), np.round(idle_heavy(200), 1)),
    "decoded to one chunk": lambda: (LIBERO, libero_like(60), np.ones((60, 3, 7))),
    "half decoded to one chunk": lambda: (
        LIBERO,
        libero_like(120),
        np.where(np.arange(120)[:, None, None] < 80, 0.5, libero_like(120)),
    ),
    "wide quaternions": lambda: absolute("quaternion", "xyzw", 120, 1.5),
    "wide axis-angles": lambda: absolute("axis_angle", None, 120, 2.0),
    "wide moving Euler angles": lambda: absolute("euler", "ZYX", 120, 1.0),
    "half turns": lambda: half_turns(120),
    "bridge": lambda: (ActionSpace.preset("bridge"), bridge(120), noisy(bridge(120), 0.02)),
    "aloha": lambda: (ActionSpace.preset("aloha"), aloha_like(120, 3), noisy(aloha_like(120, 3), 0.05)),
    "26 joints": lambda: (ActionSpace.of_joints(26), smooth(120, 3, 26, 0), noisy(smooth(120, 3, 26, 0), 0.1)),
}


@pytest.mark.parametrize("name", list(CASES))
def test_prc_is_the_scipy_loops(name: str) -> None:
    check(*CASES[name](), k=8)


@pytest.mark.parametrize("name", ["random", "one-axis grid", "idle-heavy", "half identical", "half turns", "aloha"])
@pytest.mark.parametrize("sizes", [(40,), (5, 1, 9)])
def test_prc_across_episodes_is_the_scipy_loops(name: str, sizes: tuple[int, ...]) -> None:
    space, x, y = CASES[name]()
    episodes = np.repeat(np.arange(len(x)), np.resize(sizes, len(x)))[: len(x)]
    x, y, episodes = x[:120], y[:120], episodes[:120]
    check(space, x, y, 8, np.random.default_rng(0).permutation(episodes) * 7 - 3)


@pytest.mark.parametrize("outside", [8, 9, 10])
@pytest.mark.parametrize("name", ["random", "one-axis grid", "idle-heavy"])
def test_episodes_with_hardly_enough_chunks_outside_are_right(name: str, outside: int) -> None:
    space, x, y = CASES[name]()
    check(space, x[:80], y[:80], 8, (np.arange(80) >= 80 - outside).astype(int))
    check(space, x[:80], y[:80], 8, (np.arange(80) < outside).astype(int))


def test_anchors_with_too_few_chunks_outside_their_episode_are_left_out() -> None:
    x = libero_like(60)
    episodes = np.array([0] * 54 + [1] * 6)  # those of the first episode see six chunks elsewhere
    result = check(LIBERO, x, noisy(x, 0.05), 8, episodes)
    assert result.left_out == 0
    assert result.across_episodes.left_out == 54
    assert np.isnan(result.across_episodes.per_anchor[:54]).all()
    alone = check(LIBERO, x, noisy(x, 0.05), 8, np.zeros(60, int)).across_episodes
    assert alone.left_out == 60
    assert math.isnan(alone.value)
    assert alone.worst == ()
    assert "nan" in repr(alone)


@pytest.mark.parametrize(("n", "k"), [(3, 2), (9, 8), (33, 32), (34, 32), (49, 32), (60, 40), (120, 64)])
def test_small_sets_and_every_k_are_right(n: int, k: int) -> None:
    for x in (libero_like(n), one_axis_grid(n, 3)):
        check(LIBERO, x, noisy(x, 0.1), k)


@pytest.mark.parametrize(
    "name", ["random", "one-axis grid", "binary grid", "idle-heavy", "8 copies of each", "half turns"]
)
@pytest.mark.parametrize("episodes", [False, True])
def test_the_slow_path_gives_the_same(name: str, episodes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    space, x, y = CASES[name]()
    labels = np.arange(len(x)) // 10 if episodes else None
    monkeypatch.setattr(module, "_SPARE", len(x))
    expected = prc(x, y, space=space, k=8, episodes=labels, worst=len(x))
    for spare, pairs, row_bytes in ((0, 1 << 20, 1 << 27), (1, 64, 1 << 27), (0, 1000, 8 * len(x) * 7), (16, 7, 1)):
        monkeypatch.setattr(module, "_SPARE", spare)
        monkeypatch.setattr(module, "_PAIRS", pairs)
        monkeypatch.setattr(module, "_ROW_BYTES", {"cpu": row_bytes, "cuda": row_bytes})
        found = prc(x, y, space=space, k=8, episodes=labels, worst=len(x))
        for a, b in ((found, expected), (found.across_episodes, expected.across_episodes)):
            if b is not None:
                np.testing.assert_allclose(a.per_anchor, b.per_anchor, atol=1e-12)
                assert [anchor.neighbors for anchor in a.worst] == [anchor.neighbors for anchor in b.worst]


def test_the_bound_holds_for_tiny_turns_about_one_orientation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rotations of 1e-8 rad about a far orientation: the rounding of chords is as large as what they tell apart."""
    rng = np.random.default_rng(0)
    turns = Rotation.random(random_state=1) * Rotation.from_rotvec(rng.normal(0, 1e-8, (600, 3)))
    x = turns.as_quat(scalar_first=True).reshape(200, 3, 4)
    space = ActionSpace("q", (Group("rotation", (0, 1, 2, 3), delta=False, form="quaternion", order="wxyz"),))
    monkeypatch.setattr(module, "_SPARE", 0)
    pruned = prc(x, x[:, ::-1], space=space, k=8)
    monkeypatch.setattr(module, "_SPARE", 200)
    np.testing.assert_array_equal(pruned.per_anchor, prc(x, x[:, ::-1], space=space, k=8).per_anchor)


# The rules ------------------------------------------------------------------------------------------------------------

JOINT = ActionSpace.of_joints(1)


def line(*places: float) -> np.ndarray:
    """Chunks of one step and one joint: points on a line, whose distances are squared differences."""
    return np.array(places, np.float64).reshape(-1, 1, 1)


def test_equal_kth_distances_go_to_the_lowest_index() -> None:
    x = line(0, 1, 2, -2, -3, 2)  # the third neighbour of the first may be 2, 3 or 5
    result = prc(x, x + line(0, 0.1, 0, 0.3, 0, 0), space=JOINT, k=2, worst=6)
    first = next(anchor for anchor in result.worst if anchor.index == 0)
    assert first.neighbors == (1, 2)
    shuffled = x[[0, 5, 4, 3, 2, 1]]
    again = prc(shuffled, shuffled * 1.5 + line(0, 0.1, 0, 0, 0, 0), space=JOINT, k=2, worst=6)
    assert next(anchor for anchor in again.worst if anchor.index == 0).neighbors == (5, 1)


def test_the_anchor_is_not_its_own_neighbour() -> None:
    x = libero_like(50)
    for anchor in prc(x, noisy(x, 0.1), space=LIBERO, k=8, worst=50).worst:
        assert anchor.index not in anchor.neighbors
        assert len(set(anchor.neighbors)) == 8


def test_decoding_perfectly_gives_exactly_one() -> None:
    for x in (libero_like(100), one_axis_grid(100, 3), idle_heavy(100)):
        result = prc(x, x, space=LIBERO, k=16, episodes=np.arange(100) // 5)
        assert result.value == 1.0
        assert result.across_episodes is not None
        assert result.across_episodes.value == 1.0
        assert result.quantiles["0.0"] == result.quantiles["1.0"] == 1.0


def test_a_reversed_order_gives_minus_one() -> None:
    # What was near is far after decoding, for each of three points; two such triples, far from each other.
    x, y = line(0, 1, 3, 100, 101, 103), line(0, 3, 1, 100, 103, 101)
    result = prc(x, y, distance=PhysicalDistance(JOINT, (1.0,)), k=2)
    assert result.value == -1
    assert (result.per_anchor == -1).all()


def test_a_constant_decoded_neighbourhood_scores_zero_and_is_counted() -> None:
    x = libero_like(40)
    result = prc(x, np.zeros_like(x), space=LIBERO, k=8)
    assert (result.value, result.collapsed, result.left_out) == (0.0, 40, 0)
    assert (result.per_anchor == 0).all()


def test_a_constant_original_neighbourhood_is_left_out_and_counted() -> None:
    x = np.concatenate((np.zeros((10, 3, 7)), libero_like(30) + 5))
    result = prc(x, noisy(x, 0.1), space=LIBERO, k=8)
    assert result.left_out == 10
    assert np.isnan(result.per_anchor[:10]).all()
    assert not np.isnan(result.per_anchor[10:]).any()
    assert all(anchor.index >= 10 for anchor in result.worst)
    nothing = prc(np.zeros((10, 3, 7)), libero_like(10), space=LIBERO, k=8)
    assert (nothing.left_out, nothing.collapsed) == (10, 0)
    assert math.isnan(nothing.value)
    assert all(math.isnan(value) for value in nothing.quantiles.values())


def test_rounding_errors_do_not_break_a_tie() -> None:
    x = line(0.1, 0.1 + 0.2, 0.1 - 0.2, 0.7, -0.5, 2.0)  # 0.3 - 0.1 is not quite 0.1 - -0.1 in floating point
    result = prc(x, line(0, 1, 2, 3, 4, 5), distance=PhysicalDistance(JOINT, (1.0,)), k=2, worst=6)
    assert 0 not in [anchor.index for anchor in result.worst]  # its two nearest are equally far
    assert math.isnan(result.per_anchor[0])


def test_the_same_input_gives_the_same_output() -> None:
    x = libero_like(100)
    a, b = (prc(x, noisy(x, 0.1), space=LIBERO, k=8, episodes=np.arange(100) // 9) for _ in range(2))
    assert np.array_equal(a.per_anchor, b.per_anchor)
    assert (a.value, a.worst, a.quantiles) == (b.value, b.worst, b.quantiles)


def test_permuting_the_chunks_permutes_the_anchors() -> None:
    x = libero_like(120)
    y = noisy(x, 0.1)
    distance = PhysicalDistance.fit(LIBERO, x)
    order = np.random.default_rng(0).permutation(120)
    whole = prc(x, y, distance=distance, k=8).per_anchor
    np.testing.assert_allclose(prc(x[order], y[order], distance=distance, k=8).per_anchor, whole[order], atol=1e-12)


def test_numpy_torch_float32_and_lists_give_the_same() -> None:
    x = libero_like(60)
    y = noisy(x, 0.1)
    expected = prc(x.astype(np.float64), y.astype(np.float64), space=LIBERO, k=8)
    tensors = (torch.as_tensor(x), torch.as_tensor(y).requires_grad_())
    for a, b in ((x, y), tensors, (x.tolist(), y.tolist())):
        np.testing.assert_array_equal(prc(a, b, space=LIBERO, k=8).per_anchor, expected.per_anchor)


@pytest.mark.parametrize("labels", ["numbers", "tensor", "names"])
def test_episodes_may_be_numbers_tensors_or_names(labels: str) -> None:
    x = libero_like(60)
    numbers = np.arange(60) // 7
    given: Any = {"numbers": numbers, "tensor": torch.as_tensor(numbers), "names": [f"ep{i}" for i in numbers]}[labels]
    expected = prc(x, noisy(x, 0.1), space=LIBERO, k=8, episodes=numbers * -5).across_episodes
    found = prc(x, noisy(x, 0.1), space=LIBERO, k=8, episodes=given).across_episodes
    assert expected is not None
    assert found is not None
    assert found.value == expected.value


def test_the_worst_anchors_are_sorted_and_can_be_recomputed() -> None:
    x = libero_like(150)
    y = noisy(x, 0.3)
    distance = PhysicalDistance.fit(LIBERO, x)
    result = prc(x, y, distance=distance, k=8, worst=12)
    assert len(result.worst) == 12
    values = [anchor.rho for anchor in result.worst]
    assert values == sorted(values)
    np.testing.assert_allclose(values, np.sort(result.per_anchor)[:12], atol=1e-15)
    before, after = distance.pairwise(x).numpy(), distance.pairwise(y).numpy()
    for anchor in result.worst:
        assert list(anchor.original) == sorted(anchor.original)
        np.testing.assert_allclose(anchor.original, before[anchor.index, list(anchor.neighbors)], rtol=1e-9)
        np.testing.assert_allclose(anchor.decoded, after[anchor.index, list(anchor.neighbors)], rtol=1e-9)
        assert anchor.rho == pytest.approx(spearmanr(anchor.original, anchor.decoded).statistic, abs=1e-12)
        assert anchor.rho == result.per_anchor[anchor.index]
    assert prc(x, y, distance=distance, k=8, worst=0).worst == ()
    assert result.value == pytest.approx(result.per_anchor.mean(), abs=1e-15)
    assert result.quantiles["0.5"] == pytest.approx(np.median(result.per_anchor))
    assert repr(result).startswith(f"PRC@8 {result.value:.4f} over 150 chunks (0 left out, 0 collapsed")


def test_average_ranks_are_scipys() -> None:
    values = np.random.default_rng(0).integers(0, 6, (50, 20)).astype(float)
    np.testing.assert_array_equal(average_ranks(torch.as_tensor(values)).numpy(), rankdata(values, axis=1))


def test_progress_rises_to_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ROW_BYTES", {"cpu": 8 * 50 * 7, "cuda": 1})
    x, seen = libero_like(50), list[float]()
    prc(x, x, space=LIBERO, k=8, progress=seen.append)
    assert len(seen) == 8
    assert seen == sorted(seen)
    assert seen[-1] == 1


def test_what_does_not_fit_is_a_clear_error() -> None:
    x = libero_like(20)
    holed = x.copy()
    holed[3, 2, 1] = np.nan
    wrongs: list[tuple[Any, Any, dict[str, Any], str]] = [
        (holed, x, {"space": LIBERO}, "original chunks hold 1 values that are not finite"),
        (x, holed, {"space": LIBERO}, "decoded chunks hold 1 values that are not finite"),
        (x, x, {}, "needs the action space"),
        (x, x[:10], {"space": LIBERO}, "differ in shape"),
        (x[..., :6], x[..., :6], {"space": LIBERO}, "6 columns"),
        (x[0], x[0], {"space": LIBERO}, "must have shape"),
        (x, x, {"space": LIBERO, "k": 20}, "at least k . 1 chunks; there are 20"),
        (x, x, {"space": LIBERO, "k": 1}, "k of at least 2"),
        (x, x, {"space": LIBERO, "episodes": [1, 2, 3]}, "one number per chunk"),
        (x, x, {"space": JOINT, "distance": PhysicalDistance.fit(LIBERO, x)}, "was fitted for 'libero'"),
    ]
    for original, decoded, rest, sentence in wrongs:
        with pytest.raises(ActionPieceError, match=sentence):
            prc(original, decoded, **{"k": 8, **rest})


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", ["random", "one-axis grid", "idle-heavy", "half turns"])
def test_cuda_gives_the_same(name: str) -> None:
    space, x, y = CASES[name]()
    there = prc(torch.as_tensor(x, device="cuda"), y, space=space, k=8, episodes=np.arange(len(x)) // 10)
    here = prc(x, y, space=space, k=8)
    np.testing.assert_allclose(there.per_anchor, here.per_anchor, atol=1e-9)
