"""Checks of answers of ``codesign``: network, routes, rings, the step played again, figures and bound; no search."""
