"""Building blocks shared by tokenizers: clustering now, Transformer blocks and quantisers for the learned ones."""
