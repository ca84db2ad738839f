"""PaSE's graphs."""
