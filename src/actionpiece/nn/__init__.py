"""Building blocks shared by tokenizers: clustering, Transformer blocks, quantisers, the paper's codec."""
