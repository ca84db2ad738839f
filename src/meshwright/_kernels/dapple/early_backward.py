"""One step of a pipeline that runs one backward and one forward in turn after its warm-up, transfers on links of their own."""

import numpy as np

from meshwright._kernels.compiling import kernel


@kernel(allocates=True)
def drained_seconds(forward, backward, send, depth, n_microbatches):
    """When each stage ends its last backward pass.

    Parameters
    ----------
    forward, backward : ndarray, shape (n_stages,), float64
        Seconds of one micro-batch.
    send : ndarray, shape (2, n_stages), float64
        Seconds of what each stage sends forward (row 0) and backward (row 1); one transfer at a time each way.
    depth : ndarray, shape (n_stages,), int64
        Forward tasks of each stage before its first backward one; never growing from a stage to the next.
    n_microbatches : int
        Micro-batches.

    Returns
    -------
    ndarray, shape (n_stages,), float64
        Seconds.

    Notes
    -----
    Backward pass i of a stage needs its forward pass i + depth - 1 at most, and forward pass j its backward pass j - depth: so
    all stages' forward passes up to i + depth and then all stages' backward passes i, from the last stage to the first, is an
    order in which everything needed has been computed.
    """
    n_stages = len(forward)
    free = np.zeros(n_stages)
    done = np.zeros(n_stages, np.int64)
    line = np.zeros((2, n_stages))
    arrived = np.zeros((n_stages, n_microbatches))
    for i in range(n_microbatches):
        for s in range(n_stages):
            for j in range(done[s], min(n_microbatches, i + depth[s])):
                free[s] = max(free[s], arrived[s, j]) + forward[s]
                if s + 1 < n_stages:
                    line[0, s] = max(line[0, s], free[s]) + send[0, s]
                    arrived[s + 1, j] = line[0, s]
                done[s] = j + 1
        ready = 0.0
        for s in range(n_stages - 1, -1, -1):
            free[s] = max(free[s], ready) + backward[s]
            line[1, s] = max(line[1, s], free[s]) + send[1, s]
            ready = line[1, s]
    return free
