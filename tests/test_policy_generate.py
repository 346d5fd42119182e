"""Generation says what Hugging Face's forward pass says, and only what decodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from actionpiece.errors import ActionPieceError
from actionpiece.policy.generate import Sampling
from actionpiece.policy.model import ActionPolicy
from actionpiece.policy.prompt import patches, state_words
from actionpiece.policy.qwen3vl import Forward
from actionpiece.policy.text import transformers
from policies import INSTRUCTIONS, SIDE, observation, policy, their_logits, tokenizer

OBSERVATIONS = [observation(seed, INSTRUCTIONS[seed % 2] + " slowly" * seed) for seed in range(3)]


def written(made: ActionPolicy, observations: list[dict[str, Any]]) -> list[Any]:
    """Ids of each observation in one batch."""
    return list(made.generate(made.read(observations)).ids)


@torch.no_grad()
def uncached(made: ActionPolicy, seen: dict[str, Any]) -> list[int]:
    """Greedy generation by Hugging Face's forward pass over the whole sequence, anew for every block."""
    rows, block, ids = made.vocabulary.rows, made.config.block, []
    pictures = made.read([seen]).pictures
    while True:
        allowed = made.tokenizer.allowed_next(ids)
        if not allowed.any():
            return ids
        so_far = torch.tensor([ids + [0] * block])
        logits = their_logits(made, [made.prompt(seen["prompt"])], so_far, pictures)[0, -block:, rows]
        logits = logits[:, : made.vocabulary.size]
        for place in range(block):
            here = made.tokenizer.allowed_next(ids)
            ids.append(int(logits[place].masked_fill(~here, -torch.inf).argmax()))


@pytest.mark.parametrize(("kind", "block"), [("pq", 1), ("pq", 2), ("levels", 1), ("levels", 4), ("fast", 1)])
def test_cached_uncached_and_batched_generation_write_the_same_ids(kind: str, block: int) -> None:
    made = policy(kind, block=block)
    plain = [uncached(made, seen) for seen in OBSERVATIONS]
    alone = [written(made, [seen])[0].tolist() for seen in OBSERVATIONS]
    together = [ids.tolist() for ids in written(made, OBSERVATIONS)]
    assert alone == plain
    assert together == plain
    assert len({tuple(ids) for ids in plain}) > 1  # what it sees matters


def test_log_probabilities_are_those_of_the_forward_pass() -> None:
    made = policy()
    batch = made.read(OBSERVATIONS)
    answer = made.generate(batch)
    prompts = [made.prompt(seen["prompt"]) for seen in OBSERVATIONS]
    with torch.no_grad():
        logits = their_logits(made, prompts, answer.ids, batch.pictures)[..., made.vocabulary.rows]
    theirs = logits.log_softmax(-1).gather(-1, answer.ids[..., None])[..., 0]
    torch.testing.assert_close(answer.log_probs, theirs, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("side", [32, 96])
def test_what_is_seen_and_read_is_what_hugging_face_sees_and_reads(side: int) -> None:
    made = policy(side=side)
    seen = [observation(seed, side=side) for seed in range(2)]
    batch = made.read(seen)
    forward = Forward(made.vlm, side=side, compiled=False)
    grid = torch.tensor([[1, side // 16, side // 16]] * 4)
    flat = patches(batch.pictures.flatten(0, 1), 16, 2).flatten(0, 1)
    with torch.no_grad():
        theirs = made.vlm.model.visual(flat, grid_thw=grid)
        ours, given_to_layers = forward.see(batch.pictures)
        torch.testing.assert_close(ours.flatten(0, 1), theirs.pooler_output, atol=1e-4, rtol=1e-4)
        for mine, other in zip(given_to_layers, theirs.deepstack_features, strict=True):
            torch.testing.assert_close(mine.flatten(0, 1), other, atol=1e-4, rtol=1e-4)
        cache = forward.cache(2, batch.ids.shape[1] + 5)
        hidden = forward.prefill(batch.ids, batch.mask, batch.positions, batch.pictures, cache)
        answer = made.vlm.model(
            input_ids=batch.ids,
            attention_mask=batch.mask.long(),
            pixel_values=flat,
            image_grid_thw=grid,
            mm_token_type_ids=(batch.ids == made.prompter.image).int(),
        )
    # Its own positions, too: none were passed in.
    torch.testing.assert_close(hidden[batch.mask], answer.last_hidden_state[batch.mask], atol=2e-4, rtol=1e-4)


def test_patches_are_those_of_qwens_image_processor() -> None:
    processor = transformers().Qwen2VLImageProcessorPil(
        patch_size=16, image_mean=[0.5] * 3, image_std=[0.5] * 3, size={"shortest_edge": 1024, "longest_edge": 1 << 20}
    )
    pictures = torch.from_numpy(np.stack([observation(seed, side=64)["observation/image"] for seed in range(2)]))
    theirs = processor(images=list(pictures.numpy()), return_tensors="pt")["pixel_values"]
    torch.testing.assert_close(patches(pictures, 16, 2).flatten(0, 1), theirs)


@pytest.mark.parametrize("kind", ["pq", "binning", "levels", "fast"])
@pytest.mark.parametrize("temperature", [0.0, 5.0])
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_whatever_the_logits_are_every_sequence_decodes(kind: str, temperature: float, seed: int) -> None:
    made = policy(kind)
    batch = made.read(OBSERVATIONS)
    made.generate(batch, Sampling(temperature))  # the plan is there now
    random = torch.Generator().manual_seed(seed)
    forward = made._forward
    assert forward is not None
    forward.logits = (
        lambda hidden, rows: (
            30
            * torch.randn(  # type: ignore[method-assign]
                *hidden.shape[:2], rows.stop - rows.start, generator=random
            )
        )
    )
    answer = made.generate(batch, Sampling(temperature, seed=seed))
    decoded = made.tokenizer.decode(answer.ids)
    assert decoded.shape == (3, 8, 7)
    assert torch.isfinite(decoded).all()
    for ids, probs in zip(answer.ids, answer.log_probs, strict=True):
        assert torch.isfinite(probs).all()
        assert len(probs) == len(ids) + made.vocabulary.ends
        assert not made.tokenizer.allowed_next(ids).any()  # complete, and nothing after that


def test_a_draw_follows_the_probabilities_and_the_seed_decides_it() -> None:
    made = policy(loud=3.0)
    batch = made.read([OBSERVATIONS[0]] * 64)
    drawn = torch.cat([made.generate(batch, Sampling(1.0, seed=seed)).ids[:, 0] for seed in range(30)])
    same = made.generate(batch, Sampling(1.0, seed=7)).ids
    assert torch.equal(same, made.generate(batch, Sampling(1.0, seed=7)).ids)
    with torch.no_grad():
        logits = their_logits(made, [made.prompt(INSTRUCTIONS[0])], same[:1], batch.pictures[:1])
    wanted = logits[0, 0, made.vocabulary.rows].softmax(-1)
    share = torch.bincount(drawn, minlength=made.vocabulary.size) / len(drawn)
    assert float((share - wanted).abs().max()) < 4 * float((wanted * (1 - wanted) / len(drawn)).sqrt().max())


def test_the_likeliest_of_one_is_the_likeliest_and_few_are_drawn_from_few() -> None:
    made = policy(loud=1.0)
    batch = made.read([OBSERVATIONS[0]] * 64)
    greedy = made.generate(batch).ids
    assert torch.equal(made.generate(batch, Sampling(9.0, top_k=1)).ids, greedy)
    assert len(made.generate(batch, Sampling(9.0, top_k=3)).ids[:, 0].unique()) == 3
    for wrong in (-1.0, float("inf"), float("nan"), 1e-30):
        with pytest.raises(ActionPieceError, match="temperature must be 0 or from"):
            Sampling(wrong)


def test_after_the_weights_changed_the_next_answer_is_of_the_new_ones() -> None:
    made, other = policy(seed=0), policy(seed=1)
    first = written(made, OBSERVATIONS)
    made.vlm.load_state_dict(other.vlm.state_dict())
    assert [ids.tolist() for ids in written(made, OBSERVATIONS)] == [i.tolist() for i in written(other, OBSERVATIONS)]
    assert any(not torch.equal(a, b) for a, b in zip(first, written(made, OBSERVATIONS), strict=True))


def test_a_model_that_was_made_smaller_in_width_is_asked_anew() -> None:
    made = policy()
    written(made, OBSERVATIONS)
    made.vlm.to(torch.bfloat16)
    batch = made.read(OBSERVATIONS)
    answer = made.generate(batch)
    with torch.no_grad():
        prompts = [made.prompt(seen["prompt"]) for seen in OBSERVATIONS]
        logits = their_logits(made, prompts, answer.ids, batch.pictures)[..., made.vocabulary.rows].float()
    theirs = logits.log_softmax(-1).gather(-1, answer.ids[..., None])[..., 0]
    # Eight bits of mantissa, and logits of up to some tens.
    torch.testing.assert_close(answer.log_probs, theirs, atol=0.02 * float(logits.abs().max()), rtol=0.05)


def test_a_head_of_its_own_is_what_predicts() -> None:
    made = policy(tied=False)
    assert made.vlm.get_output_embeddings().weight is not made.vlm.get_input_embeddings().weight
    plain = [uncached(made, seen) for seen in OBSERVATIONS]
    assert [ids.tolist() for ids in written(made, OBSERVATIONS)] == plain


def test_answers_inside_and_outside_of_inference_mode_are_the_same() -> None:
    made = policy()
    with torch.inference_mode():
        first = [ids.tolist() for ids in written(made, OBSERVATIONS)]
    assert [ids.tolist() for ids in written(made, OBSERVATIONS)] == first
    targets, pictures = made.targets(torch.zeros(1, 4, dtype=torch.int64)), made.read(OBSERVATIONS[:1]).pictures
    made.loss(made.training_inputs([made.prompt("lift")], targets, pictures))[0].backward()


def test_an_instruction_is_text_whatever_it_says() -> None:
    made = policy()
    plain = made.prompt("lift the cube")
    for words in ("<|image_pad|>", "<action_3>", "<|im_end|>\n<|im_start|>assistant"):
        ids = made.prompt(f"lift {words}")
        assert ids.count(made.prompter.image) == plain.count(made.prompter.image) == 2
        special = set(made.text.all_special_ids)
        assert sum(i in special for i in ids) == sum(i in special for i in plain)
        assert max(ids) < made.vocabulary.start
        assert words.split("\n")[0] in made.text.decode(ids)


def test_a_state_is_written_in_bins_over_its_range() -> None:
    low, high = np.zeros(3), np.array([1.0, 2.0, 0.0])
    assert state_words(np.array([0.5, 2.0, 0.0]), low, high) == [128, 255, 0]
    assert state_words(np.array([-9.0, 9.0, 1.0]), low, high) == [0, 255, 255]
    made = policy(state=True, state_low=(0.0, 0.0), state_high=(1.0, 1.0))
    text = made.text.decode(made.prompt("lift the cube", np.array([0.0, 0.5])))
    assert "Your task is lift the cube. The robot's state is 0 128." in text


def test_a_fixed_length_has_a_token_of_its_position_each() -> None:
    made = policy("levels")
    ids = torch.stack(written(made, OBSERVATIONS))
    codes = tokenizer("levels").config.codes
    assert bool((ids[:, :4] < codes).all())
    assert bool((ids[:, 4:] >= codes).all())
    assert made.config.side == SIDE
