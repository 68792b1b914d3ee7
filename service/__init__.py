"""Twophase: chat from a language model, with the time of every answer in plain sight."""

__version__ = "0.1.0.dev0"
