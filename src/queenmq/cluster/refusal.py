"""Why a packet is dropped. Each reason is a counter; none is ever logged per packet."""

from __future__ import annotations

from enum import Enum


class Refusal(Enum):
    TOO_SHORT = "too_short"
    TOO_LONG = "too_long"
    WRONG_VERSION = "wrong_version"
    WRONG_LENGTH = "wrong_length"
    UNKNOWN_TYPE = "unknown_type"
    UNKNOWN_KEY = "unknown_key"
    BAD_SIGNATURE = "bad_signature"
    BAD_SENDER = "bad_sender"
    OWN_PACKET = "own_packet"
    OLD_EPOCH = "old_epoch"
    REPLAYED = "replayed"
    TOO_OLD = "too_old"
    UNDECODABLE = "undecodable"
    UNKNOWN_SENDER = "unknown_sender"  # says something of itself before its first heartbeat
    TOO_MANY_MEMBERS = "too_many_members"
