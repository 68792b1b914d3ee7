"""Settings: where they come from, what is refused, and in which words."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.settings import SettingsError, load, nearest


def test_defaults_are_safe() -> None:
    settings = load()
    assert settings.host == "127.0.0.1" and settings.port == 8000
    assert settings.model_name == "smollm2-135m-instruct"
    assert settings.input_policy == "reject" and settings.output_policy == "clamp"


def test_the_environment_and_the_file_are_read_and_the_environment_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "twophase.toml"
    file.write_text("port = 9000\nmax_n = 2\n[engine_args]\nmax_num_seqs = 4\n")
    monkeypatch.setenv("TWOPHASE_CONFIG", str(file))
    monkeypatch.setenv("TWOPHASE_MAX_N", "3")
    settings = load()
    assert (settings.port, settings.max_n, settings.engine_args) == (9000, 3, {"max_num_seqs": 4})


def test_the_command_line_wins_over_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWOPHASE_PORT", "9000")
    assert load(port=9001).port == 9001
    assert load(port=None).port == 9000


def test_engine_arguments_come_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWOPHASE_ENGINE_ARGS", '{"max_num_seqs": 8}')
    assert load().engine_args == {"max_num_seqs": 8}


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("TWOPHASE_PROT", "1", "TWOPHASE_PROT is no setting; did you mean TWOPHASE_PORT?"),
        ("TWOPHASE_PORT", "many", "TWOPHASE_PORT: "),
        ("TWOPHASE_PORT", "70000", "TWOPHASE_PORT: "),
        ("TWOPHASE_INPUT_POLICY", "cut", "TWOPHASE_INPUT_POLICY: "),
        ("TWOPHASE_ENGINE_ARGS", "{broken", "the settings cannot be read"),
        ("TWOPHASE_CONFIG", "/nowhere/at-all.toml", "/nowhere/at-all.toml"),
    ],
)
def test_what_cannot_be_names_the_setting(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, said: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError) as refused:
        load()
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cache_secret", "123456789"),
        ("quota_store", "123456789"),
        ("engine_args", '\'{"hf_token": "123456789"}\''),
    ],
)
def test_what_may_be_a_secret_is_not_shown_when_it_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    file = tmp_path / "twophase.toml"
    file.write_text(f"{name} = {value}\n")
    monkeypatch.setenv("TWOPHASE_CONFIG", str(file))
    with pytest.raises(SettingsError) as refused:
        load()
    assert f"TWOPHASE_{name.upper()}" in str(refused.value) and "123456789" not in str(refused.value)


def test_a_name_nobody_knows_in_the_file_is_refused_with_the_nearest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "twophase.toml"
    file.write_text("prot = 9000\n")
    monkeypatch.setenv("TWOPHASE_CONFIG", str(file))
    with pytest.raises(SettingsError, match=r"prot is no setting; did you mean port\?"):
        load()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "example.org"])
def test_other_machines_are_served_only_with_intent(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    monkeypatch.setenv("TWOPHASE_HOST", host)
    with pytest.raises(SettingsError, match="TWOPHASE_ALLOW_ANONYMOUS=1"):
        load().check_reach()
    monkeypatch.setenv("TWOPHASE_ALLOW_ANONYMOUS", "1")
    load().check_reach()


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.1.2.3", "::1"])
def test_this_machine_needs_no_keys(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    monkeypatch.setenv("TWOPHASE_HOST", host)
    load().check_reach()


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("Qwen/Qwen3-0.6B", "Qwen3-0.6B"),
        ("/models/llama-3.1-8b/", "llama-3.1-8b"),
        ("plain", "plain"),
    ],
)
def test_the_served_name_is_the_last_part_of_the_models(model: str, name: str) -> None:
    assert load(model=model).model_name == name
    assert load(model=model, served_model_name="mine").model_name == "mine"


def test_nearest_says_nothing_when_nothing_is_near() -> None:
    assert nearest("zzzz", ["port", "host"]) == ""
