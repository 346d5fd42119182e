"""Token shards: whole, complete, resumable, and never mixed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from actionpiece.data import Chunks, Demos, open_demos
from actionpiece.errors import ActionPieceError
from actionpiece.evaluation.contenders import fit
from actionpiece.evaluation.score import Training
from actionpiece.tokenizers import ActionTokenizer
from actionpiece.tokenizers.binning import BinningConfig
from actionpiece.tokenizers.corpus import tokenize


@pytest.fixture(scope="module")
def tokenizers(demos: Demos) -> dict[str, ActionTokenizer]:
    training = Training.of(demos, 8)
    return {kind: fit(kind, demos, training) for kind in ("binning", "fast")}


def test_data_that_cannot_be_split_is_tokenized_all_the_same(
    tokenizers: dict[str, ActionTokenizer], tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    for name, lengths in (("a", [4] * 6), ("b", [4, 4])):
        np.savez(tmp_path / "data" / f"{name}.npz", actions=np.zeros((sum(lengths), 7)), ep_len=lengths)
    (tmp_path / "data" / "a.json").write_text('{"split": {"seed": 0, "test": 1, "validation": 1}}')
    few = open_demos(tmp_path / "data", space="libero")
    with pytest.raises(ActionPieceError, match="too few"):
        few.split()
    tokenize(tokenizers["binning"], few, tmp_path / "out")
    assert set(pq.read_table(tmp_path / "out")["split"].to_pylist()) == {"all"}


@pytest.mark.parametrize("kind", ["binning", "fast"])
def test_the_shards_hold_what_encode_says(
    kind: str, demos: Demos, tokenizers: dict[str, ActionTokenizer], tmp_path: Path
) -> None:
    tokenizer = tokenizers[kind]
    tokenize(tokenizer, demos, tmp_path / "out", shard=9000)
    table = pq.read_table(tmp_path / "out")
    assert table.num_rows == demos.lengths.sum()  # tail="repeat": a chunk starts at every step
    chunks = Chunks(demos, np.arange(len(demos)), 8, tail="repeat")
    pick = np.random.default_rng(0).choice(len(chunks), 300, replace=False)
    expected = tokenizer.encode(chunks[pick])
    for row, ids in zip(pick, expected, strict=True):
        assert table["ids"][int(row)].as_py() == list(ids)
    assert np.array_equal(table["episode"].to_numpy()[pick], chunks.episode_of(pick))
    assert np.array_equal(table["start"].to_numpy()[pick], chunks.start_of(pick))
    test = set(demos.split().test.tolist())
    splits = table["split"].to_pylist()
    assert all((splits[i] == "test") == (table["episode"][int(i)].as_py() in test) for i in pick)


def test_an_interrupted_run_goes_on_and_ends_the_same(
    demos: Demos, tokenizers: dict[str, ActionTokenizer], tmp_path: Path
) -> None:
    class StopError(Exception):
        pass

    def stop_in_the_middle(fraction: float) -> None:
        if fraction > 0.4:
            raise StopError

    whole, broken = tmp_path / "whole", tmp_path / "broken"
    tokenize(tokenizers["fast"], demos, whole, shard=5000)
    with pytest.raises(StopError):
        tokenize(tokenizers["fast"], demos, broken, shard=5000, progress=stop_in_the_middle)
    done = sorted(path.name for path in broken.glob("*.parquet"))
    assert 0 < len(done) < len(list(whole.glob("*.parquet")))
    (broken / done[0]).write_bytes(b"half a file")  # a shard damaged from outside is written again
    kept = (broken / done[1]).stat().st_mtime_ns
    tokenize(tokenizers["fast"], demos, broken, shard=5000)
    assert (broken / done[1]).stat().st_mtime_ns == kept  # and a whole one is not
    for path in whole.iterdir():
        assert (broken / path.name).read_bytes() == path.read_bytes()


def test_a_folder_of_other_tokens_is_refused(
    demos: Demos, tokenizers: dict[str, ActionTokenizer], tmp_path: Path
) -> None:
    tokenize(tokenizers["binning"], demos, tmp_path / "out", shard=20_000)
    other = fit("binning", demos, Training.of(demos, 8), config=BinningConfig(bins=16))
    with pytest.raises(ActionPieceError, match="another tokenizer"):
        tokenize(other, demos, tmp_path / "out", shard=20_000)
    bridge = open_demos("generated", space="bridge")  # as wide as libero, and another robot's
    with pytest.raises(ActionPieceError, match="action space 'libero', the data is in 'bridge'"):
        tokenize(other, bridge, tmp_path / "bridge")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("do not touch")
    with pytest.raises(ActionPieceError, match="not empty"):
        tokenize(other, demos, tmp_path / "mine")
    with pytest.raises(ActionPieceError, match=r"thesis\.txt is a file"):
        tokenize(other, demos, tmp_path / "mine" / "thesis.txt")
    (tmp_path / "mine" / "thesis.txt").rename(tmp_path / "mine" / ".x.part")  # as a kill may leave it
    tokenize(other, demos, tmp_path / "mine", shard=100_000)
