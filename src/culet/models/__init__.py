"""Architectures, each written once against `culet.ops.interface`."""
