"""A graph of layers into pipeline stages on devices: the problem behind Piper."""
