"""What encoding and decoding lost: physical rank consistency, fidelity, codebook use, overlap, corruption, latency."""
