"""Design the network together with the plan."""
