"""The ops seam: one interface, several backends. Models see only `interface`."""
