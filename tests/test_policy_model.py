"""A policy answers observations, says what is wrong with others, and comes back from its folder as it was."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from actionpiece.errors import ActionPieceError
from actionpiece.evaluation.rollout import load_policy
from actionpiece.files import files_in
from actionpiece.policy.model import ActionPolicy, PolicyConfig
from actionpiece.policy.text import transformers
from actionpiece.tokenizers.wrapped import wrap
from policies import INSTRUCTIONS, SIDE, observation, policy, tokenizer


@pytest.mark.parametrize("kind", ["pq", "fast"])
def test_a_saved_policy_gives_the_same_commands(kind: str, tmp_path: Path) -> None:
    made = policy(kind, state=True, state_low=(-1.0,) * 8, state_high=(1.0,) * 8)
    seen = observation(1)
    made.save(tmp_path / "policy")
    again = ActionPolicy.load(tmp_path / "policy")
    np.testing.assert_array_equal(again.act(seen), made.act(seen))
    assert again.config == made.config
    assert again.vocabulary == made.vocabulary
    assert not [file for file in (tmp_path / "policy").rglob("*") if file.suffix in (".bin", ".pt", ".pkl")]
    as_rollout_has_it = load_policy(str(tmp_path / "policy"))
    np.testing.assert_array_equal(as_rollout_has_it.act(seen), made.act(seen))


def test_a_policy_takes_the_place_of_one_with_more_files_but_not_of_somebodys_notes(tmp_path: Path) -> None:
    folder = tmp_path / "policy"
    policy().save(folder)
    facts = json.loads((folder / "policy.json").read_text())
    (folder / "vlm" / "model-00002-of-00002.safetensors").touch()  # as a larger model leaves
    (folder / "policy.json").write_text(
        json.dumps(facts | {"files": [*facts["files"], "vlm/model-00002-of-00002.safetensors"]})
    )
    policy(seed=1).save(folder)
    assert json.loads((folder / "policy.json").read_text())["files"] == facts["files"] == sorted(files_in(folder))
    (folder / "vlm" / "notes.txt").write_text("do not touch")
    with pytest.raises(ActionPieceError, match=r"also holds vlm/notes\.txt"):
        policy().save(folder)
    assert (folder / "vlm" / "notes.txt").is_file()


def test_a_rollout_is_not_mixed_with_that_of_a_policy_trained_anew(tmp_path: Path) -> None:
    from actionpiece.evaluation.rollout import rollout

    pytest.importorskip("robosuite", reason="needs the extra 'sim'")
    policy().save(tmp_path / "policy")
    weights = json.loads((tmp_path / "policy" / "policy.json").read_text())["weights"]
    (tmp_path / "out").mkdir()
    settings = {"policy": str(tmp_path / "policy"), "execute": 8, "size": 32, "published": False, "seed": 7}
    (tmp_path / "out" / "settings.json").write_text(json.dumps({**settings, "weights": weights}))
    policy(seed=1).save(tmp_path / "policy")
    with pytest.raises(ActionPieceError, match="another weights"):
        rollout(settings["policy"], ["lift"], tmp_path / "out", episodes=1, size=32)


def test_a_rollout_is_not_mixed_with_that_of_another_policy_behind_the_same_address(tmp_path: Path) -> None:
    from actionpiece.evaluation import rollout as room
    from actionpiece.policy.server import PolicyServer, ServerConfig

    pytest.importorskip("robosuite", reason="needs the extra 'sim'")
    with PolicyServer(policy(), ServerConfig(port=0)) as server:
        settings = {"policy": server.uri, "execute": 8, "size": 32, "published": False, "seed": 7, "server": "another"}
        (tmp_path / "settings.json").write_text(json.dumps(settings))
        with pytest.raises(ActionPieceError, match="another server"):
            room.rollout(server.uri, ["lift"], tmp_path, episodes=1, size=32)
        room._load.cache_clear()  # it holds a connection


def test_threads_that_ask_at_once_get_their_own_answers() -> None:
    made = policy("binning")
    looks = [observation(seed) for seed in range(6)]
    alone = [made.act(look) for look in looks]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            for answer, expected in zip(pool.map(made.act, looks), alone, strict=True):
                np.testing.assert_array_equal(answer, expected)


def test_a_tokenizer_that_cannot_be_saved_is_refused_before_the_training() -> None:
    sizes = {"space": "libero", "horizon": 8, "vocab_size": 4, "tokens_per_chunk": 4}
    mine = wrap(lambda x: np.zeros((len(x), 4), int), lambda ids: ids, **sizes)
    with pytest.raises(ActionPieceError, match="this wrapped one cannot be"):
        ActionPolicy.tiny(tokenizer=mine, corpus=INSTRUCTIONS, config=PolicyConfig(side=SIDE))


def test_a_batch_of_any_size_is_answered_as_one_by_one() -> None:
    made = policy()
    seen = [observation(seed, INSTRUCTIONS[seed % 2]) for seed in range(5)]
    together = made.act_batch(seen)
    for one, answer in zip(seen, together, strict=True):
        np.testing.assert_allclose(made.act(one), answer["actions"], atol=1e-6)
        assert answer["actions"].shape == (8, 7)
        assert answer["actions"].dtype == np.float32
        assert answer["log_probs"].shape == (4,)
    assert made.act_batch([]) == []


def test_pictures_of_another_size_are_resampled() -> None:
    made, seen = policy(), observation(0, side=80)
    assert made.act(seen).shape == (8, 7)
    assert made.read([seen]).pictures.shape == (1, 2, 32, 32, 3)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"prompt": 3}, "a text under 'prompt'"),
        ({"prompt": "x" * 3000}, "at most 2,000"),
        ({"prompt": "\N{GRINNING FACE}" * 200}, "and 256 tokens"),
        ({"prompt": "\ud800"}, "written as UTF-8"),
        ({"observation/image": None}, "uint8 under 'observation/image'"),
        ({"observation/image": np.zeros((8, 8, 3))}, "uint8 under 'observation/image'"),
        ({"observation/image": np.zeros((8, 8, 4), np.uint8)}, "no picture"),
        ({"observation/wrist_image": np.zeros((0, 8, 3), np.uint8)}, "no picture"),
        ({"observation/wrist_image": np.zeros((8, 9000, 3), np.uint8)}, "no picture"),
        ({"observation/state": np.zeros(3)}, "array of 8 values"),
        ({"observation/state": np.full(8, np.nan)}, "finite numbers"),
        ({"observation/state": np.array(["x"] * 8)}, "finite numbers"),
    ],
)
def test_an_observation_that_cannot_be_answered_is_named(change: dict[str, Any], said: str) -> None:
    made = policy(state=True, state_low=(0.0,) * 8, state_high=(1.0,) * 8)
    made.check(observation())
    with pytest.raises(ActionPieceError, match=said):
        made.check({**observation(), **change})


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"side": 40}, "multiple of 32"),
        ({"views": ()}, "at least one view"),
        ({"block": 0}, "block of 1"),
        ({"state": True}, "least and largest"),
        ({"state": True, "state_low": (0.0, 1.0), "state_high": (1.0, np.nan)}, "must be finite"),
        ({"state": True, "state_low": (0.0, 1.0), "state_high": (1.0, 0.5)}, "in this order"),
        ({"block": 3}, "not made of blocks of 3"),
    ],
)
def test_settings_that_cannot_be_are_refused(config: dict[str, Any], said: str) -> None:
    with pytest.raises(ActionPieceError, match=said):
        policy(**config)


def test_sequences_that_differ_in_length_are_not_made_of_blocks() -> None:
    with pytest.raises(ActionPieceError, match="not made of blocks"):
        policy("fast", block=2)


def test_released_weights_are_read_from_a_folder(tmp_path: Path) -> None:
    made = policy()
    for part in (made.vlm, made.text):
        part.save_pretrained(tmp_path / "released")
    # A released model knows no actions: a text tokenizer without them.
    plain = ActionPolicy.tiny(tokenizer=tokenizer("binning"), corpus=INSTRUCTIONS)
    names = {token for token in plain.text.get_vocab() if token.startswith("<action_")}
    from actionpiece.policy.text import SIZES, qwen3vl_config, text_tokenizer

    text = text_tokenizer(INSTRUCTIONS)
    assert not names & set(text.get_vocab())
    torch.manual_seed(0)
    vlm = transformers().Qwen3VLForConditionalGeneration(qwen3vl_config(SIZES["tiny"], text))
    for part in (vlm, text):
        part.save_pretrained(tmp_path / "plain")
    loaded = ActionPolicy.from_vlm(
        tmp_path / "plain", tokenizer=tokenizer(), config=PolicyConfig(side=32), dtype=torch.float32
    )
    known = len(text)
    torch.testing.assert_close(loaded.vlm.get_input_embeddings().weight[:known], vlm.get_input_embeddings().weight)
    assert loaded.act(observation()).shape == (8, 7)
    with pytest.raises(ActionPieceError, match="has tokens named"):
        ActionPolicy.from_vlm(tmp_path / "released", tokenizer=tokenizer())


def test_what_is_no_vision_language_model_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(ActionPieceError, match="there is no whole vision-language model at"):
        ActionPolicy.from_vlm(tmp_path, tokenizer=tokenizer())
    with pytest.raises(ActionPieceError, match="there is no untrained model 'huge'"):
        ActionPolicy.untrained("huge", tokenizer=tokenizer())


def test_a_folder_that_is_not_whole_is_an_error(tmp_path: Path) -> None:
    made = policy()
    made.save(tmp_path / "policy")
    with pytest.raises(ActionPieceError, match=r"policy\.json does not exist"):
        ActionPolicy.load(tmp_path)
    facts = json.loads((tmp_path / "policy" / "policy.json").read_text())
    (tmp_path / "policy" / "policy.json").write_text(json.dumps({**facts, "format": 99}))
    with pytest.raises(ActionPieceError, match="not of format 1"):
        ActionPolicy.load(tmp_path / "policy")
    (tmp_path / "policy" / "policy.json").write_text(json.dumps(facts))
    weights = tmp_path / "policy" / "vlm" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ActionPieceError, match="no whole vision-language model"):
        ActionPolicy.load(tmp_path / "policy")
    made.save(tmp_path / "again")
    tensors = load_file(tmp_path / "again" / "vlm" / "model.safetensors")
    tensors.pop("model.visual.merger.norm.weight")
    save_file(tensors, tmp_path / "again" / "vlm" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ActionPieceError, match=r"merger\.norm\.weight is missing"):
        ActionPolicy.load(tmp_path / "again")
    made.save(tmp_path / "moved")
    facts["vocabulary"]["first"] += 1
    (tmp_path / "moved" / "policy.json").write_text(json.dumps(facts))
    with pytest.raises(ActionPieceError, match="its vocabulary is not that of its model"):
        ActionPolicy.load(tmp_path / "moved")


def test_a_policy_of_another_tokenizer_is_not_loaded(tmp_path: Path) -> None:
    policy().save(tmp_path / "policy")
    tokenizer("binning").save_pretrained(tmp_path / "other")
    for name in ("config.json", "model.safetensors"):
        (tmp_path / "policy" / "tokenizer" / name).write_bytes((tmp_path / "other" / name).read_bytes())
    with pytest.raises(ActionPieceError, match="not the one that the policy's vocabulary was made for"):
        ActionPolicy.load(tmp_path / "policy")
