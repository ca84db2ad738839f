"""Pipeline schedules: in which order a pipeline rank runs its work. One file per schedule.

Promises of a schedule module, checked by ``tests/contract/test_schedules.py``:

* ``order(n_ranks, n_microbatches) -> Slots``; every micro-batch goes forward and backward once through every stage;
* the order does not deadlock; its peak number of micro-batches in flight per stage is what ``in_flight`` states.
"""
