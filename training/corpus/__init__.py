"""The corpus: everything the built-in model reads, made by code from a seed.

An item depends on nothing but its number and its split, so that training can resume anywhere.
"""

from training.corpus.mixture import CATEGORIES, evaluation_item, training_item

__all__ = ["CATEGORIES", "evaluation_item", "training_item"]
