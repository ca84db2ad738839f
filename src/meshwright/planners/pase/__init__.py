"""PaSE (Elango, IPDPS 2021): the best sharding of every operator by dynamic programming over the operator graph."""
