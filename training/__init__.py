"""Trains the built-in model: corpus, tokenizer, training, evaluation, export.

Outside the package: nothing in `culet` imports it, and serving needs none of its dependencies.
"""
