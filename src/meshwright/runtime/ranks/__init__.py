"""Which rank does what."""
