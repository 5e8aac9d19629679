"""Quantised tensors: types, numpy reference codecs, and the re-encoding into compute planes."""
