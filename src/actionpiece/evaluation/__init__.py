"""Where tokenizers meet data (scores, comparisons) and, later, simulators."""
