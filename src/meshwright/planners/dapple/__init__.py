"""DAPPLE (Fan et al., PPoPP 2021): hybrid data and pipeline plans for synchronous training on a hierarchy of machines."""
