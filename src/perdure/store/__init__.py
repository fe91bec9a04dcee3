"""Durable storage: one SqlStore over two thin drivers. Knows tables and transactions, nothing of user code."""
