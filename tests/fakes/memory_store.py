"""A c10d store in memory, whose connections can fail at given operations."""

import threading


class Store:
    """One connection; clones share the values.

    Args:
        fails_at: called with each operation and its key; a true result makes the operation fail.
    """

    def __init__(self, fails_at=None, values=None, lock=None):
        self.values, self.fails_at = {} if values is None else values, fails_at
        self.lock = lock or threading.Lock()

    def clone(self, fails_at=None):
        return type(self)(fails_at or self.fails_at, self.values, self.lock)

    def _reach(self, operation):
        if self.fails_at and self.fails_at(operation):
            raise RuntimeError("Connection reset by peer")

    def compare_set(self, key, expected, desired):
        self._reach(f"compare_set {key}")
        with self.lock:
            if self.values.get(key, "") == expected:
                self.values[key] = desired
            return self.values[key].encode()

    def check(self, keys):
        self._reach(f"check {keys[0]}")
        with self.lock:
            return all(key in self.values for key in keys)

    def get(self, key):
        self._reach(f"get {key}")
        return self.values[key].encode()

    def set(self, key, value):
        self._reach(f"set {key}")
        with self.lock:
            self.values[key] = value

    def delete_key(self, key):
        with self.lock:
            return self.values.pop(key, None) is not None
