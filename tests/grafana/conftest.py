"""The dashboards' own library warns when it is imported, and warnings are errors here."""

from __future__ import annotations

import importlib
import warnings

with warnings.catch_warnings():
    # It would rather have the second schema, which older Grafanas cannot read.
    warnings.simplefilter("ignore", DeprecationWarning)
    importlib.import_module("grafana.files")
