"""`queen db`: what people need to know about the bundled PostgreSQL."""

from __future__ import annotations

import argparse

from queenmq import config
from queenmq.storage.embedded import default_data_dir, running_url


def run(given: argparse.Namespace) -> int:
    settings = config.load(data_dir=given.data_dir)
    print(running_url(settings.data_dir or default_data_dir()))
    return 0
