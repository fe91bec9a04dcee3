"""Digests of recorded values: 16 bytes of BLAKE2b over the encoded text, in hex."""

from __future__ import annotations

from hashlib import blake2b

from perdure.core.codec.encoding import encode


def digest(text: str) -> str:
    """32 hex digits. The text is encoded already, so equal digests mean equal type, value and order."""
    return blake2b(text.encode("ascii"), digest_size=16).hexdigest()


def digest_of(value: object) -> str:
    """The digest of a value. Raises `SerializationError` rather than leave out what cannot be encoded."""
    return digest(encode(value))
