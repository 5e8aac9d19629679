"""HTTP: three API families over one engine, and the chat page. Knows no files and no kernels."""
