"""A batch halfway through a codec, and the objectives of it in plain numpy, for the tests of the objectives."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np
import torch
from scipy.spatial.transform import Rotation
from torch import Tensor

from actionpiece.distance import PhysicalDistance
from actionpiece.nn.quantize import ResidualVQ
from actionpiece.nn.transformer import SlotEncoder, StepDecoder
from actionpiece.objectives import OBJECTIVES, Step
from actionpiece.space import ActionSpace, Group
from conftest import libero_like

Sharing = Literal["shared", "per_slot"]
KINDS = list(itertools.product([1, 2], ["shared", "per_slot"]))
HORIZON, DIM, SLOTS, WIDTH = 5, 7, 3, 6
COMPANIONS, BLEND = 3, 0.4

SPACE = ActionSpace(  # LIBERO's, with weights that are not 1
    "test",
    (
        Group("translation", (0, 1, 2), unit=0.05, delta=True, weight=2.0),
        Group("rotation", (3, 4, 5), unit=0.5, delta=True, form="axis_angle", weight=0.7),
        Group("gripper", (6,), open=-1.0, closed=1.0, weight=0.3),
    ),
)


def make_step(
    levels: int = 1,
    sharing: Sharing = "shared",
    *,
    batch: int = 40,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    chunks: np.ndarray | None = None,
) -> Step:
    """A batch halfway through an untrained codec; `features` and `decoded` are leaves of the graph."""
    torch.manual_seed(seed)
    raw = torch.from_numpy(libero_like(batch, HORIZON, seed) if chunks is None else chunks).to(torch.float64)
    scale = torch.linspace(0.5, 2.0, DIM, dtype=torch.float64)
    offset = torch.linspace(-0.2, 0.3, DIM, dtype=torch.float64)
    target = ((raw - offset) / scale).to(dtype)
    encoder = SlotEncoder(HORIZON, DIM, SLOTS, width=WIDTH, depth=1, heads=2)
    decoder = StepDecoder(HORIZON, DIM, SLOTS, width=WIDTH, depth=1, heads=2)
    quantizer = ResidualVQ(WIDTH, slots=SLOTS, levels=levels, codes=8, dim=4, sharing=sharing).to(dtype)
    # An untrained encoder's slots are alike in all chunks; a chunk's features are to differ here.
    encoded = encoder(target.float()).to(dtype)
    features = (encoded + 0.5 * torch.randn(len(raw), SLOTS, WIDTH, dtype=dtype)).detach().requires_grad_()
    quantized = quantizer(features)
    decoded = (target + 0.1 * decoder(quantized.output.float()).to(dtype)).detach().requires_grad_()
    distance = PhysicalDistance.fit(SPACE, raw.numpy())
    rates = distance.column_rates() * scale
    return Step(
        target=target,
        decoded=decoded,
        features=features,
        quantized=quantized,
        quantizer=quantizer,
        distance=distance,
        physical=distance.features(raw),
        offset=offset.to(dtype),
        scale=scale.to(dtype),
        rates=rates.to(dtype),
        emphasis=rates.pow(BLEND).to(dtype),
        companions=COMPANIONS,
    )


# --- The paper's formulas in numpy: no code of the package below this line


@dataclass
class Chosen:
    """One residual level in numpy: what it was given, Delta, codes, codewords, s, pi, the soft average."""

    residual: np.ndarray
    delta: np.ndarray
    codes: np.ndarray
    hard: np.ndarray
    deviation: np.ndarray
    pi: np.ndarray
    soft: np.ndarray


class Plain:
    """The constants of a step in numpy, and the objectives as functions of features or of the decoded chunks.

    With `held`, codes and deviations are those of another evaluation, and a codeword is its hard value there plus
    the change of the soft average since: what the straight-through gradient is the gradient of.
    """

    def __init__(self, step: Step) -> None:
        def array(x: Tensor) -> np.ndarray:
            return x.detach().numpy()

        vq = step.quantizer
        self.w_in, self.b_in = array(vq.project_in.weight), array(vq.project_in.bias)
        self.w_out, self.b_out = array(vq.project_out.weight), array(vq.project_out.bias)
        self.books = array(vq.codebook)
        self.target, self.scale, self.offset = array(step.target), array(step.scale), array(step.offset)
        self.s_p, self.s_r, _ = step.distance.scales
        self.features, self.decoded = array(step.features), array(step.decoded)

    def parts(self, normalised: np.ndarray) -> tuple[np.ndarray, Rotation, np.ndarray]:
        """Metres (B, H, 3), rotations (B * H), gripper (B, H) in [0, 1]."""
        raw = normalised * self.scale + self.offset
        return raw[..., :3] * 0.05, Rotation.from_rotvec((raw[..., 3:6] * 0.5).reshape(-1, 3)), (raw[..., 6] + 1) / 2

    def physical(self) -> np.ndarray:
        p, r, g = self.parts(self.target)
        n, h = g.shape
        matrices = r.as_matrix().reshape(n, h, 3, 3)
        out = np.zeros((n, n))
        for i in range(n):
            relative = matrices[i].transpose(0, 2, 1) @ matrices
            angle = np.linalg.norm(Rotation.from_matrix(relative.reshape(-1, 3, 3)).as_rotvec(), axis=-1).reshape(n, h)
            step = 2.0 * ((p[i] - p) ** 2).sum(-1) / self.s_p**2 + 0.7 * (angle / self.s_r) ** 2
            out[i] = (step + 0.3 * (g[i] - g) ** 2).mean(-1)
        return out

    def ranked(self, i: int) -> list[int]:
        """The others from near to far; equal distances by index."""
        row = self.physical_distances[i]
        return sorted((j for j in range(len(row)) if j != i), key=lambda j: (row[j], j))

    @property
    def physical_distances(self) -> np.ndarray:
        if not hasattr(self, "_physical"):
            self._physical = self.physical()
        return self._physical

    def pairs(self) -> list[tuple[int, int, int]]:
        others = len(self.target) - 1
        near, far = (max(math.ceil(Fraction(percent, 100) * others), 1) - 1 for percent in (5, 95))
        return [(i, self.ranked(i)[near], self.ranked(i)[far]) for i in range(others + 1)]

    def levels(self, features: np.ndarray, held: list[Chosen] | None = None) -> list[Chosen]:
        residual, out = features @ self.w_in.T + self.b_in, []
        for number, books in enumerate(self.books):
            book = np.broadcast_to(books, (SLOTS, *books.shape[1:]))
            delta = ((residual[:, :, None] - book) ** 2).sum(-1)
            codes = held[number].codes if held else delta.argmin(-1)
            hard = book[np.arange(SLOTS), codes]
            mean = delta.mean(-1, keepdims=True)
            spread = np.sqrt(((delta - mean) ** 2).mean(-1, keepdims=True))
            deviation = held[number].deviation if held else np.maximum(spread, 1e-6)
            weights = np.exp(-delta / deviation)
            pi = weights / weights.sum(-1, keepdims=True)
            soft = np.einsum("bsk,skd->bsd", pi, book)
            out.append(Chosen(residual, delta, codes, hard, deviation, pi, soft))
            residual = residual - hard
        return out

    def representation(self, features: np.ndarray, held: list[Chosen] | None = None) -> Callable[[int, int], float]:
        def on_sphere(x: np.ndarray) -> np.ndarray:
            x = x - x.mean(-1, keepdims=True)  # LayerNorm; its scale is lost in the unit norm
            return x / np.linalg.norm(x, axis=-1, keepdims=True)

        h, total, prefixes = on_sphere(features), np.zeros(1), []
        for number, level in enumerate(self.levels(features, held)):
            estimate = level.soft + (held[number].hard - held[number].soft) if held else level.hard
            total = total + estimate @ self.w_out.T
            prefixes.append(on_sphere(total + self.b_out))

        def squared(i: int, j: int) -> float:
            encoder = ((h[i] - h[j]) ** 2).sum(-1).mean()
            quantised = np.mean([((q[i] - q[j]) ** 2).sum(-1).mean() for q in prefixes])
            return float(0.25 * encoder + 0.75 * quantised)

        return squared

    def rates(self) -> np.ndarray:
        """What a normalised unit of each column is in the physical distance: root weight, unit, both scales."""
        translation = math.sqrt(2.0) * 0.05 / self.s_p
        rotation = math.sqrt(0.7) * 0.5 / self.s_r
        gripper = math.sqrt(0.3) / 2
        return np.array([translation] * 3 + [rotation] * 3 + [gripper]) * self.scale

    def reconstruction(self, decoded: np.ndarray) -> float:
        return float((((self.target - decoded) * self.rates() ** BLEND) ** 2).sum() / self.target.size)

    def physical_error(self, decoded: np.ndarray) -> float:
        steps = [(error * self.rates()) @ (error * self.rates()) for error in (decoded - self.target).reshape(-1, DIM)]
        return float(np.mean(steps))

    def neighbor_order(self, decoded: np.ndarray) -> float:
        def apart(x: np.ndarray, i: int, j: int) -> float:
            steps = [(((x[i, t] - x[j, t]) * self.rates()) ** 2).sum() for t in range(HORIZON)]
            return math.sqrt(np.mean(steps))

        terms = []
        for anchor in range(0, len(decoded), COMPANIONS + 1):
            others = range(anchor + 1, anchor + 1 + COMPANIONS)
            before, after = ([apart(x, anchor, j) for j in others] for x in (self.target, decoded))
            terms.append(1 - np.corrcoef(before, after)[0, 1])
        return float(np.mean(terms))

    def commitment(self, features: np.ndarray, held: list[Chosen] | None = None) -> float:
        return float(np.mean([((c.residual - c.hard) ** 2).mean() for c in self.levels(features, held)]))

    def physical_rank(self, features: np.ndarray, held: list[Chosen] | None = None) -> float:
        squared = self.representation(features, held)
        gaps = [math.sqrt(squared(i, near)) - math.sqrt(squared(i, far)) + 0.1 for i, near, far in self.pairs()]
        return float(np.mean([math.log(1 + math.exp(gap)) for gap in gaps]))

    def quantization_order(self, features: np.ndarray, held: list[Chosen] | None = None) -> float:
        def kl(p: np.ndarray, q: np.ndarray) -> float:
            return float((p * np.log(p / q)).sum())

        def js(p: np.ndarray, q: np.ndarray) -> float:
            return kl(p, (p + q) / 2) / 2 + kl(q, (p + q) / 2) / 2

        levels = self.levels(features, held)

        def divergence(i: int, j: int) -> float:
            return float(np.mean([js(c.pi[i, s], c.pi[j, s]) for c in levels for s in range(SLOTS)]))

        gaps = [divergence(i, near) - divergence(i, far) + 0.1 for i, near, far in self.pairs()]
        return float(np.mean([math.log(1 + math.exp(gap)) for gap in gaps]))

    def neighborhood(self, features: np.ndarray, held: list[Chosen] | None = None) -> float:
        squared = self.representation(features, held)
        above = below = 0.0
        for i in range(len(features)):
            chosen = self.ranked(i)[:10]
            distances = self.physical_distances[i, chosen]
            for j, d in zip(chosen, distances, strict=True):
                weight = math.exp(-d / distances.mean())
                above += weight * squared(i, j)
                below += weight
        return above / below

    def temporal(self, decoded: np.ndarray) -> float:
        (p, r, g), (p2, r2, g2) = self.parts(self.target), self.parts(decoded)

        def changes(rotation: Rotation) -> np.ndarray:
            m = rotation.as_matrix().reshape(*g.shape, 3, 3)
            return m[:, :-1].transpose(0, 1, 3, 2) @ m[:, 1:]

        moved = ((np.diff(p2, axis=1) - np.diff(p, axis=1)) ** 2).sum(-1).mean()
        gripped = ((np.diff(g2, axis=1) - np.diff(g, axis=1)) ** 2).mean()
        between = (changes(r).transpose(0, 1, 3, 2) @ changes(r2)).reshape(-1, 3, 3)
        angle = Rotation.from_matrix(between).magnitude()
        turned = (8 * (1 - np.cos(angle / 2))).mean()
        return float(2.0 * moved / self.s_p**2 + 0.7 * turned / self.s_r**2 + 0.3 * gripped)

    def sigreg(self, features: np.ndarray, seed: int = 3) -> float:
        generator = torch.Generator().manual_seed(seed)
        directions = torch.empty(WIDTH, 256, dtype=torch.float64).normal_(generator=generator).numpy()
        directions = directions / np.linalg.norm(directions, axis=0)
        t = np.linspace(-5, 5, 17)
        phase = t[:, None, None] * (features.reshape(-1, WIDTH) @ directions)  # (t, samples, directions)
        normal = np.exp(-(t**2) / 2)[:, None]
        integrand = np.abs(np.exp(1j * phase).mean(1) - normal) ** 2 * normal
        return float((0.5 * (integrand[1:] + integrand[:-1]) * np.diff(t)[:, None]).sum(0).mean())


OF_FEATURES = ("commitment", "physical_rank", "quantization_order", "neighborhood", "sigreg")
OF_DECODED = ("reconstruction", "temporal", "physical_error", "neighbor_order")


def value_of(name: str, step: Step) -> Tensor:
    step.generator = torch.Generator().manual_seed(3)  # SIGReg's directions
    return OBJECTIVES[name](step)
