"""Where all parts meet: a model file, a backend, an engine and a tokenizer make an `LLM`."""
