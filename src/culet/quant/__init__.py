"""Quantised tensors: types, their numpy reference codecs, and the re-encoding into compute planes."""
