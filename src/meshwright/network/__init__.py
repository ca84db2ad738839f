"""How long bytes take on the links of a cluster: routes, collectives, fair shares."""
