"""A tokenizer's ids join a language model's vocabulary."""

from __future__ import annotations

import pytest
import torch

from actionpiece.errors import ActionPieceError
from actionpiece.policy.text import SIZES, qwen3vl_config, text_tokenizer, transformers
from actionpiece.policy.vocabulary import ROWS, ActionVocabulary
from policies import policy, tokenizer


def model_for(text: object, *, rows: int | None = None, tied: bool = True) -> torch.nn.Module:
    config = qwen3vl_config(SIZES["tiny"], text)
    config.tie_word_embeddings = config.text_config.tie_word_embeddings = tied
    config.text_config.vocab_size = rows or config.text_config.vocab_size
    torch.manual_seed(0)
    return transformers().Qwen3VLForConditionalGeneration(config)


@pytest.mark.parametrize("kind", ["pq", "fast"])
def test_ids_are_named_tokens_after_those_that_were_there(kind: str) -> None:
    text = text_tokenizer(["lift the cube"])
    before = len(text)
    vocabulary = ActionVocabulary.add(text, model_for(text), tokenizer(kind))
    names = [f"<action_{i}>" for i in range(tokenizer(kind).vocab_size)]
    assert text.convert_tokens_to_ids("<action_start>") == before == vocabulary.start
    assert text.convert_tokens_to_ids(names) == list(range(vocabulary.first, vocabulary.first + len(names)))
    assert vocabulary.ends == (kind == "fast")
    assert ("<action_end>" in text.get_vocab()) == vocabulary.ends
    assert text("<action_3>", add_special_tokens=False)["input_ids"] == [vocabulary.first + 3]


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("spare", [0, 200])
def test_every_new_row_is_set_by_its_id_and_the_old_ones_are_left_alone(tied: bool, spare: int) -> None:
    text = text_tokenizer(["lift the cube"])
    known = len(text)
    model = model_for(text, rows=known + spare, tied=tied)
    tables = [model.get_input_embeddings().weight, model.get_output_embeddings().weight]
    old = [table[:known].clone() for table in tables]
    with torch.no_grad():
        for table in tables:
            table[known:] = 1e6  # as if allocated and never written
    ActionVocabulary.add(text, model, tokenizer(), seed=3)
    table, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    assert (table is head) == tied
    assert len(table) >= len(text)
    assert len(table) == known + spare or len(table) % ROWS == 0
    for rows, before in zip((table, head), old, strict=True):
        torch.testing.assert_close(rows[:known], before)
        spread = ((rows[known:] - before.mean(0)) / before.std(0)).detach()
        assert float(spread.abs().max()) < 0.6
        assert 0.08 < float(spread.std()) < 0.12
        assert len(rows[known:].unique(dim=0)) == len(rows) - known


def test_the_seed_decides_the_new_rows() -> None:
    def rows(seed: int) -> torch.Tensor:
        text = text_tokenizer(["lift the cube"])
        model = model_for(text)
        vocabulary = ActionVocabulary.add(text, model, tokenizer(), seed=seed)
        return model.get_input_embeddings().weight[vocabulary.rows].detach()

    assert torch.equal(rows(0), rows(0))
    assert not torch.equal(rows(0), rows(1))


@pytest.mark.parametrize("kind", ["pq", "fast"])
def test_ids_go_there_and_back_and_others_are_refused(kind: str) -> None:
    vocabulary = policy(kind).vocabulary
    most = vocabulary.size + vocabulary.ends
    ids = torch.arange(most)
    assert torch.equal(vocabulary.from_text(vocabulary.to_text(ids)), ids)
    for wrong in (-1, most):
        with pytest.raises(ActionPieceError, match="action ids run from 0"):
            vocabulary.to_text(torch.tensor([wrong]))
        with pytest.raises(ActionPieceError, match="action tokens run from"):
            vocabulary.from_text(torch.tensor([vocabulary.first + wrong]))


def test_another_tokenizer_is_refused() -> None:
    made = policy()
    with pytest.raises(ActionPieceError, match="not the one that the policy's vocabulary was made for"):
        type(made)(made.vlm, made.text, tokenizer("binning"), made.vocabulary, made.config)


def test_a_vocabulary_is_added_once() -> None:
    made = policy()
    with pytest.raises(ActionPieceError, match="has tokens named"):
        ActionVocabulary.add(made.text, made.vlm, tokenizer())
