"""A text tokenizer and Qwen3-VL configurations that need no download: the same architecture, small and untrained."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from actionpiece.errors import ActionPieceError, not_installed

# Qwen's special tokens, by the names its prompts use.
PAD, IM_START, IM_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
VISION_START, VISION_END, IMAGE, VIDEO = "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"
SPECIAL = (PAD, IM_START, IM_END, VISION_START, VISION_END, IMAGE, VIDEO)


@dataclass(frozen=True)
class Size:
    """How large an untrained Qwen3-VL is to be: width, layers and heads of its text and of its vision model."""

    width: int
    layers: int
    heads: int
    kv_heads: int
    vision_width: int
    vision_layers: int
    vision_heads: int
    patch: int = 16


SIZES = {
    "tiny": Size(64, 2, 4, 2, 32, 2, 2),  # tests
    "small": Size(288, 6, 6, 2, 192, 6, 3, patch=8),  # from scratch on simulated demonstrations
}


def transformers() -> Any:
    """The package, or one sentence on how to get it."""
    try:
        import transformers as package
    except ImportError as error:
        raise not_installed(error, "policy") from None
    return package


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Without the progress bars of transformers, which would run through our own."""
    logging = transformers().utils.logging
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def text_tokenizer(corpus: Sequence[str], *, entries: int = 1024) -> Any:
    """A byte-level text tokenizer trained on a few sentences, with Qwen's special tokens. Any text can be written."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    plain = Tokenizer(models.BPE())
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=entries, special_tokens=list(SPECIAL), initial_alphabet=alphabet, show_progress=False
    )
    plain.train_from_iterator(sorted(set(corpus)), trainer)
    return transformers().PreTrainedTokenizerFast(
        tokenizer_object=plain, pad_token=PAD, eos_token=IM_END, additional_special_tokens=list(SPECIAL[1:])
    )


def qwen3vl_config(size: Size, text: Any) -> Any:
    """A Qwen3-VL configuration of this size for this text tokenizer."""
    head = size.width // size.heads
    if head % 16:
        raise ActionPieceError(f"heads of {head} values cannot share three kinds of positions; make it 16, 32, 64 ...")
    third = head * 5 // 32  # as 24, 20 and 20 of 64 in the released models
    token = text.convert_tokens_to_ids
    return transformers().Qwen3VLConfig(
        text_config={
            "vocab_size": len(text),
            "hidden_size": size.width,
            "intermediate_size": 3 * size.width,
            "num_hidden_layers": size.layers,
            "num_attention_heads": size.heads,
            "num_key_value_heads": size.kv_heads,
            "head_dim": head,
            "max_position_embeddings": 4096,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10_000.0,
                "mrope_section": [head // 2 - 2 * third, third, third],
                "mrope_interleaved": True,
            },
            "tie_word_embeddings": True,
        },
        vision_config={
            "depth": size.vision_layers,
            "hidden_size": size.vision_width,
            "intermediate_size": 4 * size.vision_width,
            "num_heads": size.vision_heads,
            "out_hidden_size": size.width,
            "patch_size": size.patch,
            "num_position_embeddings": 256,
            "deepstack_visual_indexes": list(range(1, size.vision_layers, 2))[: size.layers],
        },
        image_token_id=token(IMAGE),
        video_token_id=token(VIDEO),
        vision_start_token_id=token(VISION_START),
        vision_end_token_id=token(VISION_END),
        tie_word_embeddings=True,
    )
