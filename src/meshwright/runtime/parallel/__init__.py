"""A layer divided over ranks: tensor, context and expert parallelism, sharding."""
