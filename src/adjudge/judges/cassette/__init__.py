"""Replies that are kept: the cache, its file, and the bytes of calls and outcomes in it."""
