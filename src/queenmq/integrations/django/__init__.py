"""Django's tasks on Queen: the backend `queenmq.integrations.django.QueenBackend`, and the command `queen_worker`.

For Django 6 (`django.tasks`), and for Django 4.2 to 5.2 with the package `django-tasks`, which has the same interface.
"""

from queenmq.integrations.django.backend import QueenBackend

__all__ = ["QueenBackend"]
