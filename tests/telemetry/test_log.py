from __future__ import annotations

import logging
import sys
import time

import orjson
import pytest

from service.errors import Overloaded
from service.prompt.difference import Miss
from service.telemetry import log as request_log
from service.telemetry.log import formatter
from service.telemetry.outcome import outcome
from service.telemetry.phases import phases
from service.telemetry.record import RequestRecord
from tests.telemetry.records import answered, choice, refused

TRACE = "0af7651916cd43dd8448eb211c80319c"


def written(caplog: pytest.LogCaptureFixture, made: RequestRecord) -> logging.LogRecord:
    caplog.set_level(logging.INFO)
    request_log.write(made, phases(made, time.monotonic()), outcome(made), TRACE)
    (line,) = caplog.records
    return line


def test_a_json_line_has_ids_outcome_tokens_and_phases(caplog: pytest.LogCaptureFixture) -> None:
    line = orjson.loads(formatter("json").format(written(caplog, answered(choice(cached=64)))))
    assert line["level"] == "info"
    assert line["request_id"] == "req-1"
    assert line["trace_id"] == TRACE
    assert (line["outcome"], line["status"], line["error"]) == ("ok", 200, None)
    assert (line["prompt_tokens"], line["output_tokens"]) == (100, 31)
    assert line["phases"]["prefill_ms"] == pytest.approx(800)
    assert line["phases"]["bound_by"] == "decode"
    assert line["time"].endswith("+00:00")


def test_a_line_has_the_time_at_which_its_request_was_over(caplog: pytest.LogCaptureFixture) -> None:
    made = answered(choice(), end=4.25)
    made.wall_offset_s = 1_800_000_000 - (made.closed_s or 0)
    line = written(caplog, made)
    assert orjson.loads(formatter("json").format(line))["time"] == "2027-01-15T08:00:00.000+00:00"
    assert ",000 INFO" in formatter("console").format(line)


def test_a_console_line_reads_as_names_and_values(caplog: pytest.LogCaptureFixture) -> None:
    text = formatter("console").format(written(caplog, answered()))
    assert "outcome=ok status=200" in text
    assert "prefill_ms=800.0" in text
    assert "stream=true" in text
    assert "error=" not in text


def test_a_console_line_tells_forecast_and_miss_flat(caplog: pytest.LogCaptureFixture) -> None:
    made = answered(choice(cached=64))
    made.foreseen(64, Miss(70, 2, "message edited", (1, 2), (3,)))
    text = formatter("console").format(written(caplog, made))
    assert "forecast_tokens=64 miss_index=70 miss_message=2 miss_cause=message edited" in text
    assert text.count("cached_tokens=") == 1 and "{" not in text


def test_a_refusal_has_its_code_and_never_its_message(caplog: pytest.LogCaptureFixture) -> None:
    line = formatter("json").format(written(caplog, refused(Overloaded("words of the caller"))))
    assert orjson.loads(line)["error"] == "overloaded"
    assert orjson.loads(line)["level"] == "warning"
    assert "words" not in line


def test_other_lines_are_json_too_with_their_exception() -> None:
    try:
        raise ValueError("broken")
    except ValueError:
        made = logging.LogRecord("service.x", logging.ERROR, __file__, 1, "it %s", ("broke",), sys.exc_info())
    line = orjson.loads(formatter("json").format(made))
    assert (line["logger"], line["message"]) == ("service.x", "it broke")
    assert "ValueError: broken" in line["exception"]


def test_a_level_above_info_keeps_the_lines_out(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    made = answered()
    request_log.write(made, phases(made, time.monotonic()), outcome(made), None)
    assert caplog.records == []
