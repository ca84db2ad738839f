"""Files of measured costs."""
