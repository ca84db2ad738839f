"""Writers: a plan for another program, or for the eye. One file per target."""
