"""The model store: the Hugging Face cache, shared with other tools. Knows names, not formats."""
