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
    WRONG_RECEIVER = "wrong_receiver"  # for another server, or for a former life of this one
    NOT_ASKED = "not_asked"  # answers a challenge that this server has not sent, or too late, or twice
    OWN_PACKET = "own_packet"
    OLD_EPOCH = "old_epoch"
    REPLAYED = "replayed"
    TOO_OLD = "too_old"
    UNDECODABLE = "undecodable"
    UNKNOWN_SENDER = "unknown_sender"  # has not met a challenge in this life
    TOO_MANY_MEMBERS = "too_many_members"
