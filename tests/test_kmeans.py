"""K-means: against a brute-force Lloyd, and on data with fewer distinct rows than clusters."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from actionpiece.nn.kmeans import kmeans, lloyd_step, nearest


def blobs(n: int = 600, d: int = 3, k: int = 12, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    centres = 3 * torch.randn(k, d, generator=generator)
    return centres[torch.randint(k, (n,), generator=generator)] + 0.3 * torch.randn(n, d, generator=generator)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def error(x: Tensor, centroids: Tensor) -> float:
    return float(torch.cdist(x.double(), centroids.double()).amin(1).square().mean())


def lloyd(x: Tensor, centroids: Tensor, iterations: int) -> Tensor:
    for _ in range(iterations):
        centroids, _ = lloyd_step(x, centroids)
    return centroids


def brute_force_lloyd(x: Tensor, centroids: Tensor, iterations: int) -> Tensor:
    centroids = centroids.clone()
    for _ in range(iterations):
        index = torch.cdist(x, centroids).argmin(1)
        for k in range(len(centroids)):
            if bool((index == k).any()):
                centroids[k] = x[index == k].mean(0)
    return centroids


def test_nearest_is_brute_force_across_blocks() -> None:
    x, centroids = torch.randn(40_000, 2, generator=seeded()), torch.randn(7, 2, generator=seeded(1))
    index, squared = nearest(x, centroids)
    distances = torch.cdist(x, centroids, compute_mode="donot_use_mm_for_euclid_dist")
    assert float((index == distances.argmin(1)).double().mean()) > 0.9999  # up to ties in rounding
    torch.testing.assert_close(squared, distances.amin(1).square(), atol=1e-5, rtol=1e-4)
    assert float(squared.min()) >= 0


@pytest.mark.parametrize("iterations", [1, 2, 5])
def test_lloyds_iterations_are_brute_force(iterations: int) -> None:
    x = blobs().double()
    start = x[:12]
    ours = lloyd(x, start, iterations)
    torch.testing.assert_close(ours, brute_force_lloyd(x, start, iterations))


def test_every_iteration_lowers_the_error() -> None:
    x = torch.randn(500, 4, generator=seeded())
    start = x[:20]
    errors = [error(x, start), *(error(x, lloyd(x, start, i)) for i in range(1, 10))]
    assert all(b <= a * (1 + 1e-6) for a, b in itertools.pairwise(errors))
    assert errors[-1] < 0.8 * errors[0]


def test_blobs_are_found() -> None:
    x = blobs()
    centroids = kmeans(x, 12, generator=seeded())
    assert error(x, centroids) < 0.1 * float(x.var(0).sum())
    assert error(x, centroids) <= min(error(x, x[i : i + 12]) for i in range(0, 600, 12))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("k", [2, 16, 64])
def test_no_cluster_is_empty_with_enough_distinct_rows(k: int, seed: int) -> None:
    x = torch.randn(800, 2, generator=seeded(seed)) ** 3  # long tails
    centroids = kmeans(x, k, generator=seeded(seed))
    assert centroids.shape == (k, 2)
    assert len(torch.unique(nearest(x, centroids)[0])) == k


def test_empty_clusters_move_to_the_farthest_rows() -> None:
    x = torch.tensor([[0.0], [0.1], [10.0], [20.0]])
    start = torch.tensor([[0.0], [500.0], [900.0]])
    centroids = lloyd(x, start, 10)
    assert sorted(centroids.flatten().tolist()) == pytest.approx([0.05, 10.0, 20.0])


@pytest.mark.parametrize("rows", [1, 3, 40])
def test_fewer_distinct_rows_than_clusters_are_all_represented(rows: int) -> None:
    distinct = torch.randn(rows, 3, generator=seeded())
    x = distinct.repeat(5, 1)
    centroids = kmeans(x, 64, generator=seeded())
    assert centroids.shape == (64, 3)
    assert bool(torch.isfinite(centroids).all())
    assert error(x, centroids) < 1e-12


def test_all_rows_alike_give_that_row() -> None:
    centroids = kmeans(torch.full((300, 2), 0.7), 8, generator=seeded())
    torch.testing.assert_close(centroids, torch.full((8, 2), 0.7))


def test_the_seed_decides_the_result() -> None:
    x = torch.randn(5000, 3, generator=seeded())
    a, b, c = (kmeans(x, 16, generator=seeded(seed)) for seed in (0, 0, 1))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


def test_the_step_says_which_centroid_each_row_was_nearest_to() -> None:
    x = blobs()
    moved, index = lloyd_step(x, x[:12])
    assert torch.equal(index, nearest(x, x[:12])[0])
    torch.testing.assert_close(moved[3], x[index == 3].mean(0))


def test_the_result_is_close_to_a_local_optimum() -> None:
    x = torch.cat((torch.randn(1000, 2, generator=seeded()), 100 + torch.randn(40, 2, generator=seeded(1))))
    centroids = kmeans(x, 4, iterations=100, generator=seeded())
    assert bool((centroids[:, 0] > 90).any())
    refined = brute_force_lloyd(x, centroids, 5)
    assert error(x, refined) > 0.99 * error(x, centroids)
