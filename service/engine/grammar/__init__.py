"""Tries grammars in processes of their own, so that none can hold up, bring down or outlive anything here.

trial.py      the program: compiles each grammar in a child under limits of time and memory
workshop.py   talks to that program; starts it again should it end
"""

from service.engine.grammar.workshop import Limits, Unfit, Workshop

__all__ = ["Limits", "Unfit", "Workshop"]
