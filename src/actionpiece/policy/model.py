"""`ActionPolicy`: a Qwen3-VL that reads pictures and an instruction and answers with a chunk of commands.

policy = ActionPolicy.from_vlm("Qwen/Qwen3-VL-4B-Instruct", tokenizer=tok)    # released weights
policy = ActionPolicy.small(tokenizer=tok, corpus=["lift the cube"])          # the same architecture, untrained
commands = policy.act({"prompt": "lift the cube", "observation/image": ..., "observation/wrist_image": ...})
"""

from __future__ import annotations

import dataclasses
import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from torch import Tensor

from actionpiece.errors import ActionPieceError
from actionpiece.files import NO_FINGERPRINT, files_in, read_json, sha256_of, write_json, writing_folder
from actionpiece.policy.generate import Generated, Plan, Sampling
from actionpiece.policy.prompt import MERGE, Batch, Prompter, learning_inputs, state_words
from actionpiece.policy.qwen3vl import Forward, Learner
from actionpiece.policy.text import SIZES, quietly, qwen3vl_config, text_tokenizer, transformers
from actionpiece.policy.vocabulary import ActionVocabulary
from actionpiece.tokenizers import ActionTokenizer, build_config, load

POLICY = "policy.json"
_FORMAT = 1
_PLANS = 8  # recorded shapes that are kept
_LONGEST = 256  # tokens of an instruction


def written_files(folder: Path) -> list[str]:
    """The files of the policy in a folder, none where there is none: a model in fewer files may take its place."""
    facts = read_json(folder / POLICY) if (folder / POLICY).is_file() else {}
    files = facts.get("files") if isinstance(facts, dict) else None
    return [POLICY, *files] if isinstance(files, list) and all(isinstance(name, str) for name in files) else [POLICY]


@dataclass(frozen=True)
class PolicyConfig:
    """What a policy is shown and how it answers.

    Attributes:
        views: the observation's pictures, in the order in which the model reads them.
        side: of the pictures the model sees, in pixels; a multiple of 32.
        state: write the robot's state into the prompt, in bins over `state_low` to `state_high`.
        state_low: least values of the state in the training data.
        state_high: largest values of the state in the training data.
        block: tokens that are predicted at once, from the block before them. 1 is plain next-token prediction; the
            number of slots fits tokenizers whose levels follow one another (ActionCodec's and FASTer's way).
    """

    views: tuple[str, ...] = ("image", "wrist_image")
    side: int = 224
    state: bool = False
    state_low: tuple[float, ...] = ()
    state_high: tuple[float, ...] = ()
    block: int = 1

    def __post_init__(self) -> None:
        if not self.views or self.side < 32 or self.side % 32 or self.block < 1:
            raise ActionPieceError(
                "a policy needs at least one view, a side that is a multiple of 32, and a block of 1"
            )
        if len(self.state_low) != len(self.state_high) or (self.state and not self.state_low):
            raise ActionPieceError("a policy that reads the state needs its least and largest values")
        ranges = zip(self.state_low, self.state_high, strict=True)
        if not all(-math.inf < low <= high < math.inf for low, high in ranges):
            raise ActionPieceError("the state's least and largest values must be finite, and in this order")


class ActionPolicy:
    """vlm: the Hugging Face model. text: its text tokenizer. tokenizer: of the actions. vocabulary: where they meet."""

    def __init__(
        self, vlm: Any, text: Any, tokenizer: ActionTokenizer, vocabulary: ActionVocabulary, config: PolicyConfig
    ) -> None:
        vocabulary.check(tokenizer)
        if tokenizer.fingerprint() == NO_FINGERPRINT:
            raise ActionPieceError(f"a policy is saved with its tokenizer, and this {tokenizer.kind} one cannot be")
        length = tokenizer.tokens_per_chunk
        if config.block > 1 and (length is None or length % config.block):
            raise ActionPieceError(
                f"chunks of {length} {tokenizer.kind} tokens are not made of blocks of {config.block}"
            )
        patch = vlm.config.vision_config.patch_size
        if config.side % (patch * MERGE):
            raise ActionPieceError(f"pictures of {config.side} pixels are not made of {patch * MERGE}-pixel tokens")
        self.vlm, self.text, self.tokenizer, self.vocabulary, self.config = vlm, text, tokenizer, vocabulary, config
        self.prompter = Prompter(text, views=len(config.views), side=config.side, patch=patch)
        self._forward: Forward | None = None
        self._plans: dict[Any, Plan] = {}
        self._made_for: Any = None
        self._busy = threading.Lock()  # plans have buffers that two threads may not share
        self.weights: str | None = None  # the hash of those it was loaded with

    # Where one comes from -----------------------------------------------------------------------------------------

    @classmethod
    def from_vlm(
        cls,
        name: str | Path,
        *,
        tokenizer: ActionTokenizer,
        config: PolicyConfig | None = None,
        dtype: torch.dtype = torch.bfloat16,
        seed: int = 0,
    ) -> ActionPolicy:
        """A policy on released (or saved) Qwen3-VL weights, by folder or name on the hub."""
        vlm, text = _loaded(name, name, dtype)
        if vlm.config.model_type != "qwen3_vl":
            raise ActionPieceError(f"'{name}' is a {vlm.config.model_type}; policies are built on qwen3_vl")
        return cls._new(vlm, text, tokenizer, config, seed)

    @classmethod
    def untrained(
        cls,
        size: str,
        *,
        tokenizer: ActionTokenizer,
        corpus: Sequence[str] = (),
        config: PolicyConfig | None = None,
        seed: int = 0,
    ) -> ActionPolicy:
        """A policy on a randomly initialised Qwen3-VL, `tiny` or `small`, whose text tokenizer is made of a corpus."""
        if size not in SIZES:
            raise ActionPieceError(f"there is no untrained model '{size}'; there are {', '.join(SIZES)}")
        text = text_tokenizer([*corpus, "user assistant Your task is . The robot's state is 0 1 2 3 4 5 6 7 8 9"])
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed GPUs, too
            vlm = transformers().Qwen3VLForConditionalGeneration(qwen3vl_config(SIZES[size], text))
        return cls._new(vlm, text, tokenizer, config, seed)

    @classmethod
    def tiny(cls, **rest: Any) -> ActionPolicy:
        """`untrained` with about 0.3 million parameters: for tests."""
        return cls.untrained("tiny", **rest)

    @classmethod
    def small(cls, **rest: Any) -> ActionPolicy:
        """`untrained` with about 20 million parameters: learns simulated tasks from scratch."""
        return cls.untrained("small", **rest)

    @classmethod
    def _new(
        cls, vlm: Any, text: Any, tokenizer: ActionTokenizer, config: PolicyConfig | None, seed: int
    ) -> ActionPolicy:
        vocabulary = ActionVocabulary.add(text, vlm, tokenizer, seed=seed)
        return cls(vlm, text, tokenizer, vocabulary, config or PolicyConfig())

    @classmethod
    def load(cls, folder: str | Path, *, device: str = "cpu", dtype: torch.dtype | None = None) -> ActionPolicy:
        """The policy that `save` wrote. dtype: of the weights; as saved when not given."""
        root = Path(folder)
        facts = read_json(root / POLICY)
        if not isinstance(facts, dict) or facts.get("format") != _FORMAT:
            raise ActionPieceError(f"{root / POLICY} is not of format {_FORMAT}, which this version reads")
        try:
            config = build_config(PolicyConfig, facts["config"], str(root / POLICY))
            vocabulary = ActionVocabulary(**facts["vocabulary"])
            vlm, text = _loaded(root / "vlm", root / "text", dtype or "auto")
        except (KeyError, TypeError) as error:
            raise ActionPieceError(f"{root} holds no whole policy: {error}") from None
        rows = len(vlm.get_input_embeddings().weight)
        if text.convert_tokens_to_ids("<action_0>") != vocabulary.first or vocabulary.rows.stop > rows:
            raise ActionPieceError(f"{root} holds no whole policy: its vocabulary is not that of its model")
        policy = cls(vlm, text, load(root / "tokenizer"), vocabulary, config)
        policy.weights = facts.get("weights")
        policy.vlm.to(device).eval()
        return policy

    def save(self, folder: str | Path) -> None:
        """Write the policy with everything it needs: model, text tokenizer, action tokenizer, settings."""
        with writing_folder(Path(folder), POLICY, written_files(Path(folder))) as aside, quietly():
            self.vlm.save_pretrained(aside / "vlm")
            self.text.save_pretrained(aside / "text")
            self.tokenizer.save_pretrained(aside / "tokenizer")
            facts = {
                "format": _FORMAT,
                "config": dataclasses.asdict(self.config),
                "vocabulary": dataclasses.asdict(self.vocabulary),
                "weights": sha256_of(sorted((aside / "vlm").glob("*.safetensors"))),  # tells policies apart
            }
            write_json(aside / POLICY, facts | {"files": sorted({POLICY, *files_in(aside)})})

    # What is learned ----------------------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        device: torch.device = self.vlm.get_input_embeddings().weight.device
        return device

    def targets(self, ids: Any) -> Tensor:
        """Local ids (B, T) as the model is to predict them; with an end token, padded in front with -100."""
        if not self.vocabulary.ends:
            return self.vocabulary.to_text(torch.as_tensor(ids))
        longest = max(len(row) for row in ids) + 1
        out = torch.full((len(ids), longest), -100)
        for row, line in enumerate(ids):
            closed = torch.cat((torch.as_tensor(line), torch.tensor([self.vocabulary.size])))
            out[row, longest - len(closed) :] = self.vocabulary.to_text(closed)
        return out

    def training_inputs(self, prompts: Sequence[Sequence[int]], targets: Tensor, pictures: Tensor) -> dict[str, Tensor]:
        """What `loss` takes to learn targets (B, T) after prompts; on the CPU.

        A chunk's inputs are its targets moved by one block: the start token stands where there is none before.
        """
        block, start = self.config.block, self.vocabulary.start
        moved = F.pad(targets, (block, 0), value=start)[:, : targets.shape[1]]
        moved = torch.where(moved < 0, start, moved)
        lengths = (targets >= 0).sum(1).tolist()
        rows = [[*p, *m[len(m) - n :]] for p, m, n in zip(prompts, moved.tolist(), lengths, strict=True)]
        return learning_inputs(self.prompter, rows, targets, pictures, ahead=0)

    def learner(self, *, recompute: bool = False) -> Learner:
        """The model as training sees it. recompute: less memory for a third more time."""
        return Learner(self.vlm, side=self.config.side, compiled=self.device.type == "cuda", recompute=recompute)

    def loss(self, inputs: Mapping[str, Tensor], learner: Any = None) -> tuple[Tensor, Tensor, int]:
        """The summed next-token loss on action ids alone, how many of them are right, and how many there are.

        learner: `learner()`, or what wraps it to train on several processes.
        """
        targets = inputs["targets"]
        logits = (learner or self.learner())(**{name: value for name, value in inputs.items() if name != "targets"})
        loss = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), ignore_index=-100, reduction="sum")
        right = (logits.argmax(-1) == targets).sum()
        count = int((targets >= 0).sum()) if self.vocabulary.ends else targets.numel()  # the GPU is not asked in vain
        return loss, right.detach(), count

    @property
    def metadata(self) -> dict[str, Any]:
        """What clients of a server are told."""
        space = self.tokenizer.space
        return {
            "policy": "actionpiece",
            "tokenizer": self.tokenizer.kind,
            "horizon": self.tokenizer.horizon,
            "columns": list(space.labels),
            "views": [f"observation/{view}" for view in self.config.views],
            "side": self.config.side,
            "state": self.config.state,
            "fingerprint": self.vocabulary.fingerprint,
            **({} if self.weights is None else {"weights": self.weights}),
        }

    # What it answers ----------------------------------------------------------------------------------------------

    def check(self, observation: Any) -> None:
        """An error unless `observation` has an instruction and this policy's pictures and state."""
        if not isinstance(observation, Mapping) or not isinstance(observation.get("prompt"), str):
            raise ActionPieceError("an observation is a map with a text under 'prompt'")
        self.check_instruction(observation["prompt"])
        for view in self.config.views:
            picture = observation.get(f"observation/{view}")
            if not isinstance(picture, np.ndarray) or picture.dtype != np.uint8 or picture.ndim != 3:
                raise ActionPieceError(
                    f"an observation needs a picture (side, side, 3) uint8 under 'observation/{view}'"
                )
            if picture.shape[2] != 3 or min(picture.shape) < 1 or max(picture.shape) > 4096:
                raise ActionPieceError(f"'observation/{view}' has shape {picture.shape}, which is no picture (y, x, 3)")
        if self.config.state:
            state = observation.get("observation/state")
            if not isinstance(state, np.ndarray) or state.shape != (len(self.config.state_low),):
                raise ActionPieceError(f"'observation/state' must be an array of {len(self.config.state_low)} values")
            if state.dtype.kind not in "fiu" or not np.isfinite(state).all():
                raise ActionPieceError("'observation/state' must hold finite numbers")

    def check_instruction(self, text: str) -> None:
        """An error for what is no text, or too much of it: one client must not be able to fill the memory for all."""
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ActionPieceError("an instruction must be text that can be written as UTF-8") from None
        if len(text) > 2000 or len(self.prompter.plain(text)) > _LONGEST:
            raise ActionPieceError(f"an instruction has at most 2,000 characters and {_LONGEST} tokens")

    def read(self, observations: Sequence[Mapping[str, Any]]) -> Batch:
        """Observations as the model reads them, on the CPU."""
        shots = [[observation[f"observation/{view}"] for view in self.config.views] for observation in observations]
        pictures = torch.from_numpy(np.stack([[fitted(shot, self.config.side) for shot in row] for row in shots]))
        prompts = [self.prompt(o["prompt"], o.get("observation/state")) for o in observations]
        return self.prompter.batch(prompts, pictures, pad="left")

    def prompt(self, instruction: str, state: Any = None) -> list[int]:
        """The prompt's ids for an instruction, and for a state where the policy reads it."""
        words = None
        if self.config.state:
            low, high = np.array(self.config.state_low), np.array(self.config.state_high)
            words = state_words(np.asarray(state, np.float64), low, high)
        return self.prompter.ids(instruction.strip().rstrip("."), words)

    @torch.no_grad()
    @torch.inference_mode(False)  # plans outlive the call, and tensors of that mode may not be written to outside of it
    def generate(self, batch: Batch, sampling: Sampling | None = None) -> Generated:
        """Token ids for prompts, constrained so that every one of them decodes."""
        with self._busy:
            return self._generated(batch, sampling or Sampling())

    def _generated(self, batch: Batch, sampling: Sampling) -> Generated:
        draws, top_k = sampling.temperature > 0, sampling.top_k
        table = self.vlm.get_input_embeddings().weight
        made_for = (table.data_ptr(), table.device, table.dtype)
        if self._forward is None or self._made_for != made_for:  # weights that moved left recordings behind
            self.forget_plans()
            self._made_for = made_for
            self._forward = Forward(self.vlm, side=self.config.side, compiled=table.device.type == "cuda")
        key = (tuple(batch.ids.shape), draws, top_k)
        plan = self._plans.pop(key, None) or Plan(
            self._forward,
            self.vocabulary,
            self.tokenizer,
            batch,
            block=self.config.block,
            draws=draws,
            top_k=top_k,
            recorded=table.device.type == "cuda",
        )
        self._plans[key] = plan  # the last used stands last
        while len(self._plans) > _PLANS:
            self._plans.pop(next(iter(self._plans)))
        ids, log_probs, counts = plan.run(batch, sampling)
        if counts is None:
            return Generated(ids, log_probs)
        kept = counts & (ids < self.vocabulary.size)
        return Generated(
            [i[k] for i, k in zip(ids, kept, strict=True)], [p[k] for p, k in zip(log_probs, counts, strict=True)]
        )

    def forget_plans(self) -> None:
        """Let go of buffers and recordings; after training on a GPU, say. They are made anew when needed."""
        self._forward, self._plans = None, {}

    def act_batch(
        self, observations: Sequence[Mapping[str, Any]], sampling: Sampling | None = None
    ) -> list[dict[str, np.ndarray]]:
        """For each observation `actions` (H, D) float32 and `log_probs` of its tokens."""
        for observation in observations:
            self.check(observation)
        count = len(observations)
        if not count:
            return []
        rows = list(observations)
        if self.device.type == "cuda":  # the next power of two, the last row repeated: few shapes are ever recorded
            rows += rows[-1:] * ((1 << (count - 1).bit_length()) - count)
        made = self.generate(self.read(rows), sampling)
        ids = made.ids[:count]
        actions = self.tokenizer.decode(
            ids.cpu().numpy() if isinstance(ids, Tensor) else [i.cpu().numpy() for i in ids]
        )
        return [
            {"actions": action, "log_probs": probs.float().cpu().numpy()}
            for action, probs in zip(actions, made.log_probs[:count], strict=True)
        ]

    def warm_up(self) -> None:
        """Answer a made-up question: the first answer takes long, on a GPU where the pass is compiled most of all."""
        black = np.zeros((self.config.side, self.config.side, 3), np.uint8)
        state = {"observation/state": np.asarray(self.config.state_low)} if self.config.state else {}
        self.act({"prompt": "", **{f"observation/{view}": black for view in self.config.views}, **state})

    def act(self, observation: Mapping[str, Any]) -> np.ndarray:
        """Commands (H, D) for an observation: what `rollout` asks a policy for."""
        return self.act_batch([observation])[0]["actions"]


def _loaded(model: str | Path, text: str | Path, dtype: Any) -> tuple[Any, Any]:
    """A model and its text tokenizer by folder or name on the hub; weights that are not all there are an error."""
    package = transformers()
    try:
        with quietly():
            vlm, said = package.AutoModelForImageTextToText.from_pretrained(
                str(model), dtype=dtype, output_loading_info=True
            )
            words = package.AutoTokenizer.from_pretrained(str(text))
    except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
        raise ActionPieceError(f"there is no whole vision-language model at '{model}': {error}") from None
    if wrong := sorted(map(str, [*said["missing_keys"], *said["mismatched_keys"]])):
        raise ActionPieceError(
            f"there is no whole vision-language model at '{model}': {wrong[0]} is missing or misshapen"
        )
    return vlm, words


def fitted(picture: np.ndarray, side: int) -> np.ndarray:
    """A picture (y, x, 3) uint8 as a square of so many pixels, resampled where it is not one."""
    if picture.shape[:2] == (side, side):
        return picture
    from PIL import Image

    return np.array(Image.fromarray(picture).resize((side, side), Image.Resampling.BICUBIC))
