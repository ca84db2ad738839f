"""The nouns, and what can be said of one of them alone."""
