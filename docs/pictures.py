"""Draws the pictures of the documentation: `python docs/pictures.py` writes docs/images/*.svg.

Each is a function that places boxes and arrows; tests/unit/test_pictures.py checks that the files are what it draws.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

IMAGES = Path(__file__).parent / "images"
LINE, CHARACTER = 18, 7.4
STYLE = """
text{font:14px system-ui,sans-serif;fill:#1c2430}.small{font-size:12.5px;fill:#56606e}.head{font-weight:600}
rect{fill:#f4f6f9;stroke:#8a96a6;stroke-width:1.2}.good{fill:#e3f3e6;stroke:#3f8f52}.bad{fill:#fbe6e4;stroke:#b3473c}
.frame{fill:none;stroke-dasharray:5 4}path{fill:none;stroke:#56606e;stroke-width:1.5}
marker path{fill:#56606e;stroke:none}.back{fill:#fff;stroke:none}
@media(prefers-color-scheme:dark){text{fill:#e4e9f0}.small{fill:#a2adbb}rect{fill:#1b212a;stroke:#6b7788}
.good{fill:#17301d;stroke:#5fb374}.bad{fill:#3a1d1a;stroke:#d0695d}path{stroke:#a2adbb}marker path{fill:#a2adbb}
.back{fill:#12161c}.frame{fill:none}}
"""


class Picture:
    def __init__(self, width: int, height: int, title: str) -> None:
        self._size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
        self._title = title
        self._parts = [f'<rect class="back" width="{width}" height="{height}"/>']

    def box(self, x: int, y: int, width: int, head: str, *lines: str, kind: str = "") -> None:
        """A box with a heading and lines below it, as high as they need."""
        height = 16 + LINE * (1 + len(lines))
        self._parts.append(f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="6"/>')
        self.text(x + width / 2, y + 22, head, "head")
        for number, line in enumerate(lines, 1):
            self.text(x + width / 2, y + 22 + LINE * number, line, "small")

    def frame(self, x: int, y: int, width: int, height: int, head: str) -> None:
        """A dashed frame around what belongs together."""
        self._parts.append(f'<rect class="frame" x="{x}" y="{y}" width="{width}" height="{height}" rx="10"/>')
        self.text(x + 12, y + 20, head, "small", "start")

    def arrow(self, *points: tuple[int, int], label: str = "", above: bool = True, at: float = 0.5) -> None:
        """Through these points; the label stands beside the middle of its first line."""
        path = "M" + " L".join(f"{x} {y}" for x, y in points)
        self._parts.append(f'<path d="{path}" marker-end="url(#tip)"/>')
        if label:
            (x1, y1), (x2, y2) = points[:2]
            x, y = x1 + (x2 - x1) * at, y1 + (y2 - y1) * at
            if x1 == x2:
                self.text(x + 8, y + 4, label, "small", "start")
            else:
                self.text(x, y - 6 if above else y + 16, label, "small")

    def text(self, x: float, y: float, words: str, kind: str = "", anchor: str = "middle") -> None:
        self._parts.append(f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(words)}</text>')

    def __str__(self) -> str:
        tip = '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" {self._size} role="img"><title>{escape(self._title)}</title>',
                f"<style>{''.join(STYLE.splitlines())}</style>",
                f'<defs>{tip}<path d="M0 0L8 4L0 8z"/></marker></defs>',
                *self._parts,
                "</svg>\n",
            ]
        )


def message_flow() -> Picture:
    """From a producer to a consumer and back."""
    made = Picture(980, 400, "How a message flows")
    made.frame(190, 20, 420, 360, "a server")
    made.box(20, 60, 130, "Producer", "push")
    made.box(210, 50, 150, "HTTP", "checks the request,", "leaves the payload raw")
    made.box(430, 50, 160, "Lane of pushes", "merges what waits", "into one call")
    made.box(
        660,
        50,
        300,
        "PostgreSQL, one transaction",
        "locks the heads of the partitions",
        "finds duplicates",
        "gives each message its offset",
    )
    made.arrow((150, 85), (210, 85))
    made.arrow((360, 85), (430, 85))
    made.arrow((590, 85), (660, 85))
    made.arrow((700, 138), (700, 190), (85, 190), (85, 112), label="")
    made.text(400, 184, "201: committed, with offset; or duplicate", "small")
    made.box(430, 210, 160, "Long polls", "woken here and on", "other servers")
    made.arrow((810, 138), (810, 238), (590, 238), label="after the commit")
    made.box(20, 300, 130, "Consumer", "pop, ack")
    made.box(210, 290, 150, "HTTP", "holds the poll until", "there is something")
    made.arrow((430, 245), (390, 245), (390, 305), (360, 305))
    made.box(430, 300, 160, "Lane of pops", "one call for all", "who wait")
    made.box(
        660, 290, 300, "PostgreSQL", "the oldest ready partition of the group", "a lease, and the messages in order"
    )
    made.arrow((150, 320), (210, 320))
    made.arrow((360, 340), (430, 340))
    made.arrow((590, 330), (660, 330))
    return made


def lease_life() -> Picture:
    """What becomes of a message for a group."""
    made = Picture(900, 360, "The life of a lease")
    made.box(30, 130, 150, "Ready", "a pop would get it")
    made.box(330, 130, 190, "Leased", "one consumer has it,", "until a time of the database")
    made.box(700, 40, 170, "Finished", "the position moves on", kind="good")
    made.box(700, 270, 170, "Dead letter", "kept for a person", kind="bad")
    made.box(330, 270, 190, "Retrying", "waits for retryDelay")
    made.arrow((180, 150), (330, 150), label="pop")
    made.arrow((330, 180), (180, 180), label="ends, or given back", above=False)
    made.arrow((520, 145), (700, 75))
    made.text(596, 90, "ack completed", "small", "end")
    made.arrow((470, 130), (470, 90), (380, 90), (380, 130))
    made.text(425, 82, "renewed while the handler works", "small")
    made.arrow((425, 200), (425, 270), label="ack failed")
    made.arrow((330, 290), (105, 290), (105, 182), label="again, in its place", above=False)
    made.arrow((520, 300), (700, 300), label="retries used up")
    made.arrow((520, 170), (785, 170), (785, 270), label="ack dlq")
    made.arrow((785, 324), (785, 348), (60, 348), (60, 182))
    made.text(430, 342, "redrive", "small")
    return made


def failover() -> Picture:
    """What clients see while the writer of PostgreSQL changes."""
    made = Picture(940, 440, "A failover of the database")
    columns = {"Producer": 90, "Queen": 330, "PostgreSQL A": 580, "PostgreSQL B": 820}
    for name, x in columns.items():
        made.box(x - 75, 15, 150, name)
        made._parts.append(f'<path stroke-dasharray="4 4" d="M{x} 50 L{x} 430"/>')
    p, q, a, b = columns.values()
    made.arrow((p, 80), (q, 80), label="push 1")
    made.arrow((q, 80), (a, 80), label="stored")
    made.arrow((a, 95), (b, 95), label="replicated", above=False)
    made.arrow((q, 110), (p, 110), label="201")
    made.box(a - 75, 130, 150, "gone", kind="bad")
    made.arrow((p, 190), (q, 190), label="push 2")
    made.box(q - 95, 205, 190, "on disk, fsynced", "in the journal, in order")
    made.arrow((q, 275), (p, 275), label="202 and an operation id")
    made.box(b - 75, 225, 150, "promoted", kind="good")
    made.arrow((q, 310), (b, 310), label="finds the writer: never a standby")
    made.arrow((q, 345), (b, 345), label="replays the journal; what was stored is a duplicate")
    made.arrow((p, 385), (q, 385), label="push 3")
    made.arrow((q, 385), (b, 385), label="behind push 2: the order holds")
    made.arrow((q, 415), (p, 415), label="201")
    return made


def house() -> Picture:
    """The packages, and who may import whom."""
    made = Picture(900, 470, "The packages of the server")
    made.box(30, 20, 560, "cli, server", "starts everything; what a user does goes through the client")
    made.box(30, 95, 560, "http", "wire shapes, handlers, tokens, forwarding")
    made.box(30, 170, 270, "httpserver", "sockets, parsing, limits")
    made.box(320, 170, 270, "services", "background loops, one a file")
    made.box(30, 245, 175, "broker", "push, pop, ack, …")
    made.box(222, 245, 175, "reports", "all that is only read")
    made.box(415, 245, 175, "access", "tokens, audit log")
    made.box(30, 320, 130, "operations", "done later")
    made.box(173, 320, 130, "journal", "pushes on disk")
    made.box(317, 320, 130, "cluster", "what servers tell")
    made.box(460, 320, 130, "storage", "connections, SQL")
    made.box(30, 395, 560, "core, config", "rules without I/O; settings")
    made.arrow((610, 20), (610, 450))
    made.text(618, 240, "imports", "small", "start")
    made.frame(690, 20, 190, 430, "beside the server")
    for number, (name, about) in enumerate(
        [
            ("client", "over HTTP only"),
            ("integrations", "Celery, Django, MCP, …"),
            ("pipeline", "Spark"),
            ("dashboard", "files for browsers"),
            ("verify, testing", "through the client"),
        ]
    ):
        made.box(705, 50 + 78 * number, 160, name, about)
    return made


PICTURES = {"message-flow": message_flow, "lease-life": lease_life, "failover": failover, "house": house}

if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (IMAGES / f"{name}.svg").write_text(str(draw()))
