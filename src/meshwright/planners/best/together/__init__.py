"""What virtual stages take at least by what all their ranks recompute together."""
