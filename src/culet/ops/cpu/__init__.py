"""The native CPU backend."""
