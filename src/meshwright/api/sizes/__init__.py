"""How many devices of which kind for a run, and what failures leave of a step."""
