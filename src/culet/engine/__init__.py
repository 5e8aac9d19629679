"""The serving engine: pages, prefix cache, scheduling, sampling, and the loop that runs a model."""
