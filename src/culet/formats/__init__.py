"""Reading and writing model files. Knows bytes and names; nothing of engines, models or backends."""
