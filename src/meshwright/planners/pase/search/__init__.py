"""PaSE's searches."""
