"""A binary heap in two arrays, smallest (key, item) first."""

from __future__ import annotations

from meshwright._kernels.compiling import part

__all__ = ["pop", "push"]


@part
def push(heap_key, heap_id, n_heap, key, item):
    """Push onto a binary heap ordered by (key, item); return its new length."""
    i = n_heap
    while i > 0:
        parent = (i - 1) // 2
        if heap_key[parent] < key or (heap_key[parent] == key and heap_id[parent] <= item):
            break
        heap_key[i] = heap_key[parent]
        heap_id[i] = heap_id[parent]
        i = parent
    heap_key[i] = key
    heap_id[i] = item
    return n_heap + 1


@part
def pop(heap_key, heap_id, n_heap):
    """Remove the smallest of a binary heap; it is read at position 0 before. Return the new length."""
    n_heap -= 1
    key = heap_key[n_heap]
    item = heap_id[n_heap]
    i = 0
    while True:
        child = 2 * i + 1
        if child >= n_heap:
            break
        right = child + 1
        if right < n_heap and (
            heap_key[right] < heap_key[child] or (heap_key[right] == heap_key[child] and heap_id[right] < heap_id[child])
        ):
            child = right
        if key < heap_key[child] or (key == heap_key[child] and item <= heap_id[child]):
            break
        heap_key[i] = heap_key[child]
        heap_id[i] = heap_id[child]
        i = child
    heap_key[i] = key
    heap_id[i] = item
    return n_heap
