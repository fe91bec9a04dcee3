"""The text of the journal: `encode` and `decode` of values, exceptions as data, digests.

    text <- encoding -> shapes      one walk for plain data; tags for the rest
    text <- decoding -> declared    instances only of classes that an annotation names

What goes in comes out, with its type and order, or recording it fails at once and names the path. Tags and
names are data in databases: the pin test says which.
"""

from perdure.core.codec.decoding import TAGS, decode, record
from perdure.core.codec.digests import digest, digest_of
from perdure.core.codec.encoding import MAX_DEPTH, encode
from perdure.core.codec.failures import MAX_MESSAGE_CHARS, decode_error, encode_error
from perdure.core.codec.notices import UndeclaredTypeWarning

__all__ = [
    "MAX_DEPTH",
    "MAX_MESSAGE_CHARS",
    "TAGS",
    "UndeclaredTypeWarning",
    "decode",
    "decode_error",
    "digest",
    "digest_of",
    "encode",
    "encode_error",
    "record",
]
