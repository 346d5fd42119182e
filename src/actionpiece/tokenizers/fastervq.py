"""`fastervq`: patches of time and of physical groups, an autoencoder, three residual levels (FASTerVQ).

The paper's: patches that cut time uniformly and columns by what they move; convolutions and a Transformer, about 8
million values; three residual levels of 4096 codes with 128 dimensions; absolute error, absolute error of the cosine
transform over time, 0.25 of commitment; moving averages with a reset of dead codewords; AdamW at 1e-4 with weight decay
0.1, a warmup of 1000 steps and a cosine. Ours: four steps to a patch; one convolution over steps and one that gathers
a patch for every group, and their mirror images; depths and width; positions, start of the codebooks and the rule for
dead codewords as in our other codecs, but vectors as they are: standardised ones had more error on validation chunks; a
chunk whose steps do not divide repeats its last command.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from actionpiece.nn.conv import TimeConv, TimeSpread, repeat_last
from actionpiece.nn.transformer import Stack
from actionpiece.objectives import committed, weigh
from actionpiece.space import ActionSpace
from actionpiece.tokenizers.fast import cosine_matrix
from actionpiece.tokenizers.learned import (
    LEVEL_MAJOR,
    LearnedTokenizer,
    check_baseline,
    check_codebooks,
    residual_quantizer,
    training,
)
from actionpiece.training import Batch, Losses, TrainConfig, VectorQuantized


def _training() -> TrainConfig:
    return training({"l1": 1.0, "dct": 1.0, "commitment": 0.25}, weight_decay=0.1, continuous=1000)


@dataclass(frozen=True)
class FASTerVQConfig:
    """FASTerVQ.

    Attributes:
        patch: steps of a patch.
        levels: residual levels.
        codes: codewords of a level.
        code_dim: dimension of the codewords.
        width: of the autoencoder.
        depth: Transformer layers on each side.
        heads: attention heads.
        deviation: what each slot's vectors are standardised to in codebook space; 0: they are left as they are.
        decay: of the moving averages.
        dead_share: a codeword used less than this share of the average is replaced.
        train: how it is trained.
    """

    patch: int = 4
    levels: int = 3
    codes: int = 4096
    code_dim: int = 128
    width: int = 256
    depth: int = 4
    heads: int = 4
    deviation: float = 0.0
    decay: float = 0.99
    dead_share: float = 0.03
    train: TrainConfig = field(default_factory=_training)

    def __post_init__(self) -> None:
        sizes = {"patch": self.patch, "depth": self.depth}
        names = ("l1", "dct", "commitment")
        check_baseline("fastervq", self.train, names, width=self.width, heads=self.heads, **sizes)
        check_codebooks("fastervq", self)


class PatchEncoder(nn.Module):
    """Chunks (B, H, D) to patches (B, groups * patches of time, width)."""

    def __init__(self, horizon: int, groups: list[list[int]], config: FASTerVQConfig) -> None:
        super().__init__()
        self.groups, self.patch = groups, config.patch
        width = config.width
        self.steps = nn.ModuleList(TimeConv(len(columns), width, 3, around=1) for columns in groups)
        self.gather = nn.ModuleList(TimeConv(width, width, config.patch, stride=config.patch) for _ in groups)
        length = len(groups) * -(-horizon // config.patch)
        self.stack = Stack(length, width=width, depth=config.depth, heads=config.heads)

    def forward(self, x: Tensor) -> Tensor:
        rows = repeat_last(x, self.patch).unbind(-1)
        patches = []
        for columns, steps, gather in zip(self.groups, self.steps, self.gather, strict=True):
            # Stacked, not indexed by a list: an index from the CPU could not be recorded as part of a training step.
            own = torch.stack([rows[column] for column in columns], -1)
            patches.append(gather(F.gelu(steps(own))))
        out: Tensor = self.stack(torch.cat(patches, 1))
        return out


class PatchDecoder(nn.Module):
    """The way back: patches (B, groups * patches of time, width) to chunks (B, H, D)."""

    def __init__(self, horizon: int, groups: list[list[int]], config: FASTerVQConfig) -> None:
        super().__init__()
        self.horizon = horizon
        columns = [column for group in groups for column in group]
        self.order = [columns.index(column) for column in range(len(columns))]
        width, self.count = config.width, -(-horizon // config.patch)
        self.stack = Stack(len(groups) * self.count, width=width, depth=config.depth, heads=config.heads)
        self.spread = nn.ModuleList(TimeSpread(width, width, config.patch) for _ in groups)
        self.steps = nn.ModuleList(TimeConv(width, len(group), 3, around=1) for group in groups)

    def forward(self, patches: Tensor) -> Tensor:
        parts = self.stack(patches).split(self.count, 1)
        written = [
            steps(F.gelu(spread(part))) for part, spread, steps in zip(parts, self.spread, self.steps, strict=True)
        ]
        rows = torch.cat(written, -1).unbind(-1)
        return torch.stack([rows[at] for at in self.order], -1)[:, : self.horizon]


class FASTerVQNetwork(VectorQuantized):
    """Patches, residual quantiser, patches. groups: the columns of every physical group."""

    cosines: Tensor  # (H, H)

    def __init__(self, horizon: int, groups: list[list[int]], config: FASTerVQConfig) -> None:
        super().__init__()
        self.encoder = PatchEncoder(horizon, groups, config)
        slots = len(groups) * -(-horizon // config.patch)
        self.quantizer = residual_quantizer(config, width=config.width, slots=slots)
        self.decoder = PatchDecoder(horizon, groups, config)
        self.register_buffer("cosines", torch.tensor(cosine_matrix(horizon)).float(), persistent=False)

    def project(self, x: Tensor) -> Tensor:
        return self.quantizer.project(self.encoder(x))

    def write(self, output: Tensor) -> Tensor:
        out: Tensor = self.decoder(output)
        return out

    def losses(self, batch: Batch) -> Losses:
        quantized = self.quantizer.quantize(self.project(batch.x))
        error = self.write(quantized.output) - batch.x
        objectives = {
            "l1": lambda: error.abs().mean(),
            "dct": lambda: (self.cosines @ error).abs().mean(),
            "commitment": lambda: committed(quantized),
        }
        return Losses(*weigh(objectives, batch.config.weights, batch.x), self.follow(quantized))

    def compiled(self) -> list[nn.Module]:
        return [self.encoder, self.decoder]


def physical_groups(space: ActionSpace) -> list[list[int]]:
    """The columns that belong together: those of every group of the action space."""
    return [list(group.columns) for group in space.groups]


class FASTerVQTokenizer(LearnedTokenizer):
    """A slot is a patch: the patches of time of the first group, then of the next."""

    kind = "fastervq"
    config_class = FASTerVQConfig
    token_order = f"{LEVEL_MAJOR}; a slot is a patch of time of one group, group after group"
    config: FASTerVQConfig

    def _network(self) -> FASTerVQNetwork:
        return FASTerVQNetwork(self.horizon, physical_groups(self.space), self.config)

    @property
    def slots(self) -> int:
        return len(self.space.groups) * -(-self.horizon // self.config.patch)

    @property
    def levels(self) -> int:
        return self.config.levels
