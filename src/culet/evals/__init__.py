"""Measuring answers: comparisons with a reference, perplexity, multiple choice."""
