"""Reading and writing model files. Knows bytes and names; not engines, models or backends."""
