"""Celery and kombu on Queen: `import queenmq.integrations.kombu`, then the broker is `queen://…`.

A queue of kombu is a queue of Queen, and one more for each further step of priority. Everything that is sent to a
fanout or topic exchange goes to one queue of Queen, of which each queue bound to it is a group. Bindings of direct
exchanges are those of the connection, as in all transports of kombu without a broker that knows them.

Consumers run in an event loop of their own thread. Their handlers hand a message over and wait until kombu says what
became of it: so leases are renewed, given back and finished by the client.
"""

from kombu import transport as transports

from queenmq.integrations.kombu.transport import Transport

transports.TRANSPORT_ALIASES["queen"] = "queenmq.integrations.kombu:Transport"

__all__ = ["Transport"]
