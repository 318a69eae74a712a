"""FastStream on Queen: `broker = QueenBroker("http://127.0.0.1:6632")`.

The classes that it extends are FastStream's own, of one minor version; it promises them to nobody.
"""

from queenmq.integrations.faststream.broker import QueenBroker, QueenRouter
from queenmq.integrations.faststream.message import QueenMessage, QueenResponse
from queenmq.integrations.faststream.publisher import QueenPublisher
from queenmq.integrations.faststream.subscriber import QueenSubscriber

__all__ = ["QueenBroker", "QueenMessage", "QueenPublisher", "QueenResponse", "QueenRouter", "QueenSubscriber"]
