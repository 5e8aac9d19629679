"""From messages to token ids and back. Knows nothing of engine, models, ops or file formats."""
