"""`actionpiece`: the start as a product quantiser, which one of several, settings that fit and those that do not."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from actionpiece.errors import ActionPieceError
from actionpiece.metrics.prc import prc
from actionpiece.tokenizers import RECIPES, build_config, load, recipe
from actionpiece.tokenizers.actionpiece import ActionPieceConfig, ActionPieceTokenizer
from actionpiece.tokenizers.pq import PQConfig, PQTokenizer
from actionpiece.training import TrainConfig
from actionpiece.training.config import paper_weights
from conftest import aloha_like
from tiny import AS_PQ, CHUNKS, PLAIN, SPACE, fit, new, replica_of, same, tensors, tiny

HARDLY = {"steps": 1, "learning_rate": 1e-12, "part": "decoder", "weights": PLAIN}  # leaves a start as it is


def product_quantizer(seed: int = 0, chunks: np.ndarray = CHUNKS[:240], **config: Any) -> PQTokenizer:
    return PQTokenizer.fit(chunks, SPACE, PQConfig(**{"tokens": 4, "codes": 8, **config}), seed=seed)


def normalised_error(tokenizer: ActionPieceTokenizer | PQTokenizer) -> float:
    decoded = tokenizer.decode(tokenizer.encode(CHUNKS[:240]))
    return float((((decoded - CHUNKS[:240]) / tokenizer.normalizer.scale) ** 2).mean())


# --- Started as a product quantiser


@pytest.mark.parametrize("seed", [0, 4])
@pytest.mark.parametrize(
    ("codec", "train", "pq"),
    [
        ({}, {}, {}),
        ({"encoder_depth": 0}, {}, {}),
        ({"groups": "balanced"}, {"blend": 0.5}, {"groups": "balanced", "blend": 0.5}),
        ({"blends": (0.35,)}, {}, {"blend": 0.35}),
        ({"slots": 5}, {}, {"tokens": 5}),  # 56 values do not divide by 5
    ],
    ids=str,
)
def test_before_training_it_encodes_and_decodes_as_the_product_quantiser(
    codec: dict[str, Any], train: dict[str, Any], pq: dict[str, Any], seed: int
) -> None:
    ours, other = fit(tiny({**AS_PQ, **codec}, **HARDLY, **train), seed=seed), product_quantizer(seed, **pq)
    ids = ours.encode(CHUNKS)
    np.testing.assert_array_equal(ids, other.encode(CHUNKS))
    np.testing.assert_allclose(ours.decode(ids), other.decode(ids), atol=1e-5)
    any_ids = np.random.default_rng(0).integers(8, size=(50, ids.shape[1]))
    np.testing.assert_allclose(ours.decode(any_ids), other.decode(any_ids), atol=1e-5)
    assert ours.config.train.blend == pq.get("blend", 0.0)


def test_the_first_prepared_step_starts_from_the_quantisers_codebooks() -> None:
    replica, other = replica_of(tiny({**AS_PQ, "levels": 2})), product_quantizer()
    replica.prepare()
    quantizer = replica.codec.quantizer
    assert torch.equal(quantizer.codebook[0], other.codebooks)
    with torch.no_grad():
        levels = replica.codec(replica.examples.chunks)[2].levels
    errors = [float((level.residual - level.chosen).square().mean()) for level in levels]
    assert errors[1] < 0.7 * errors[0]  # a second level codes what the product quantiser leaves


def test_the_other_action_spaces_can_start_as_a_product_quantiser_too(aloha: Any) -> None:
    chunks = aloha_like(120)
    ours = ActionPieceTokenizer.fit(chunks, aloha, tiny(AS_PQ, **HARDLY))
    other = PQTokenizer.fit(chunks, aloha, PQConfig(tokens=4, codes=8))
    np.testing.assert_array_equal(ours.encode(chunks), other.encode(chunks))
    np.testing.assert_allclose(ours.decode(ours.encode(chunks)), other.decode(other.encode(chunks)), atol=1e-5)


@pytest.mark.parametrize("depth", [0, 1])
def test_training_from_a_product_quantiser_makes_it_better(depth: int) -> None:
    start = normalised_error(product_quantizer())
    weights = {"reconstruction": 1.0, "commitment": 3.0}
    codec = {**AS_PQ, "encoder_depth": depth, "dead_share": 0.0}
    trained = fit(tiny(codec, steps=150, batch=64, learning_rate=2e-3, weights=weights))
    assert normalised_error(trained) < 0.97 * start


@pytest.mark.parametrize("codec", [AS_PQ, {**AS_PQ, "encoder_depth": 0, "blends": (0.0, 0.5)}, {"levels": 2}], ids=str)
def test_a_saved_codec_comes_back_whole(tmp_path: Path, codec: dict[str, Any]) -> None:
    tokenizer = fit(tiny(codec, steps=2))
    loaded = load(tokenizer.save_pretrained(tmp_path / "saved"))
    assert isinstance(loaded, ActionPieceTokenizer)
    assert loaded.config == tokenizer.config
    assert same(loaded, tokenizer)
    ids = tokenizer.encode(CHUNKS)
    np.testing.assert_array_equal(loaded.encode(CHUNKS), ids)
    np.testing.assert_array_equal(loaded.decode(ids), tokenizer.decode(ids))
    assert not any(parameter.requires_grad for parameter in tokenizer.codec.parameters())


def test_encoding_in_use_never_changes_a_tokenizer() -> None:
    tokenizer = fit(tiny({"deviation": 0.2}, steps=2))
    before = {name: tensor.clone() for name, tensor in tensors(tokenizer).items()}
    tokenizer.decode(tokenizer.encode(CHUNKS + 1.0))
    assert all(torch.equal(tensor, before[name]) for name, tensor in tensors(tokenizer).items())


# --- One of several


@pytest.mark.parametrize("slack", [0.0, 0.6])
@pytest.mark.parametrize("blends", [(0.0, 0.35, 1.0), (0.5, 1.0), (1.0, 0.0, 0.7)])
def test_of_several_blends_the_best_order_wins_among_those_with_little_more_error_than_the_first(
    blends: tuple[float, ...], slack: float
) -> None:
    tried = {blend: product_quantizer(blend=blend) for blend in blends}
    errors = {blend: normalised_error(pq) for blend, pq in tried.items()}
    raw = torch.from_numpy(CHUNKS[:240])
    orders = {
        blend: prc(raw, torch.from_numpy(pq.decode(pq.encode(CHUNKS[:240]))), distance=pq.distance, k=32).value
        for blend, pq in tried.items()
    }
    eligible = [blend for blend in blends if errors[blend] <= (1 + slack) * errors[blends[0]]]
    expected = max(eligible, key=lambda blend: orders[blend])
    ours = fit(tiny({**AS_PQ, "blends": blends, "slack": slack}, **HARDLY))
    assert ours.config.train.blend == expected
    assert ours.config.blends == blends
    assert normalised_error(ours) <= errors[blends[0]] * (1 + slack) * (1 + 1e-6)
    np.testing.assert_array_equal(ours.encode(CHUNKS), tried[expected].encode(CHUNKS))


@pytest.mark.parametrize("blends", [(), (0.0, 0.7)])
def test_either_way_of_sharing_components_is_tried_with_every_blend(blends: tuple[float, ...], tmp_path: Path) -> None:
    config = tiny({**AS_PQ, "blends": blends, "groups": "either", "slack": 10.0}, **HARDLY)
    wanted = [(groups, blend) for groups in ("least_error", "balanced") for blend in blends or (0.0,)]
    assert [(one.groups, one.blend) for one in config.quantizers()] == wanted
    tried = {place: product_quantizer(groups=place[0], blend=place[1]) for place in wanted}
    raw = torch.from_numpy(CHUNKS[:240])
    orders = {
        place: prc(raw, torch.from_numpy(pq.decode(pq.encode(CHUNKS[:240]))), distance=pq.distance, k=32).value
        for place, pq in tried.items()
    }
    assert len(set(orders.values())) == len(orders)
    expected = max(orders, key=lambda place: orders[place])  # with so much slack, whatever its error
    ours = fit(config, tmp_path)
    assert (ours.config.groups, ours.config.train.blend) == expected
    np.testing.assert_array_equal(ours.encode(CHUNKS), tried[expected].encode(CHUNKS))
    assert same(fit(config, tmp_path, resume=True), ours)


def test_the_chosen_blend_is_what_training_emphasises_and_a_resumed_run_chooses_it_again(tmp_path: Path) -> None:
    config = tiny({**AS_PQ, "blends": (1.0, 0.0)}, weights=PLAIN)
    tokenizer = fit(config, tmp_path)
    chosen = replace(config, blends=(), train=replace(config.train, blend=tokenizer.config.train.blend))
    assert same(tokenizer, fit(chosen))
    assert same(fit(config, tmp_path, resume=True), tokenizer)


# --- Settings

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"slots": 0}, "at least 1 of everything"),
    ({"codes": 1}, "at least 1 of everything and 2 codes"),
    ({"decoder_depth": 0}, "at least 1 of everything"),
    ({"encoder_depth": -1}, "at least 1 of everything"),
    ({"code_dim": -1}, "at least 1 of everything"),
    ({"width": 10, "heads": 4}, "a width of 10 cannot be shared by 4 heads"),
    ({"decay": 1.0}, "decay must lie between 0 and 1"),
    ({"dead_share": 1.0}, "dead_share"),
    ({"deviation": -0.1}, "deviation"),
    ({"codebook": "both"}, "codebook must be shared or per_slot, not 'both'"),
    ({"start": "random"}, "start must be kmeans or pq, not 'random'"),
    ({"groups": "odd"}, "groups must be least_error, balanced or either, not 'odd'"),
    ({"blends": (0.5,)}, "blends and groups are of product quantisers"),
    ({"groups": "either"}, "blends and groups are of product quantisers"),
    ({"groups": "balanced"}, "blends and groups are of product quantisers"),
    ({"encoder_depth": 0}, "an encoder without layers needs a start as a product quantiser"),
    ({**AS_PQ, "codebook": "shared"}, "needs codebook per_slot, code_dim 0, deviation 0"),
    ({**AS_PQ, "code_dim": 4}, "needs codebook per_slot, code_dim 0, deviation 0"),
    ({**AS_PQ, "deviation": 0.2}, "needs codebook per_slot, code_dim 0, deviation 0"),
]


@pytest.mark.parametrize(("settings", "message"), WRONG, ids=lambda value: str(value)[:50])
def test_settings_that_do_not_fit_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ActionPieceError, match=message):
        ActionPieceConfig(**settings)


@pytest.mark.parametrize("blends", [(0.0, 2.0), (-0.5,)])
def test_blends_beyond_their_range_are_refused(blends: tuple[float, ...]) -> None:
    with pytest.raises(ActionPieceError, match="blend runs from 0"):
        fit(tiny({**AS_PQ, "blends": blends}))


def test_more_slots_than_a_chunk_has_values_cannot_start_as_a_product_quantiser() -> None:
    with pytest.raises(ActionPieceError, match="56 values to share among tokens, so it cannot make 57"):
        fit(tiny({**AS_PQ, "slots": 57}))


def test_a_codebook_dimension_of_0_is_a_slots_share_of_the_chunk() -> None:
    assert new(tiny({"code_dim": 0})).codec.quantizer.codebook.shape == (1, 1, 8, 14)
    assert new(tiny({**AS_PQ, "slots": 5})).codec.quantizer.codebook.shape == (1, 5, 8, 12)


# --- Recipes


OWN = [name for name, (kind, _, _) in RECIPES.items() if kind == "actionpiece"]


@pytest.mark.parametrize("name", ["actionpiece", *OWN])
def test_recipes_are_valid_and_survive_a_file(name: str) -> None:
    kind, config = recipe(name)
    assert kind == "actionpiece"
    assert isinstance(config, ActionPieceConfig)
    written = json.loads(json.dumps(dataclasses.asdict(config)))
    assert build_config(ActionPieceConfig, written, name) == config
    codec = new(config).codec
    x = torch.from_numpy(CHUNKS[:5])
    with torch.no_grad():
        assert codec.decode(codec.encode(x)).shape == x.shape


def test_recipes_are_best_small_and_rvq() -> None:
    assert set(OWN) == {"rvq", "best", "small"}
    _, paper = recipe("actionpiece")
    _, rvq = recipe("rvq")
    assert paper == ActionPieceConfig()
    assert rvq.train.weights == {"reconstruction": 1.0, "commitment": 0.25}
    assert replace(rvq, train=replace(rvq.train, weights=paper_weights())) == paper  # nothing else differs


def test_best_has_the_papers_budget_and_starts_as_a_product_quantiser() -> None:
    (_, best), (_, small) = recipe("best"), recipe("small")
    paper = ActionPieceConfig()
    for config in (best, small):
        assert config.start == "pq"
        assert (config.slots, config.levels, config.codes) == (paper.slots, paper.levels, paper.codes)
        assert config.train.continuous == 0  # a start that works needs no steps without codebooks
    sizes = [sum(p.numel() for p in new(config).codec.parameters()) for config in (best, small)]
    assert sizes[1] < sizes[0] / 5
    assert small.train.steps < best.train.steps / 10
    assert small.train.weights == best.train.weights


def test_small_trains_on_a_cpu() -> None:
    _, small = recipe("small")
    short = replace(small, codes=32, train=replace(small.train, steps=3, batch=32))
    tokenizer = fit(short)
    assert tokenizer.encode(CHUNKS[:3]).shape == (3, 16)
    assert normalised_error(tokenizer) < 1.2 * normalised_error(product_quantizer(tokens=16, codes=32))


def test_weights_of_two_configurations_are_their_own() -> None:
    a, b = TrainConfig(), TrainConfig()
    a.weights["sigreg"] = 1.0
    assert b.weights == paper_weights()
