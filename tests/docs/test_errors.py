"""docs/errors.md explains every error that the packages raise, and none that they do not."""

from pathlib import Path

from tools.docs import messages

ROWS = list(messages.rows_of(messages.PAGE.read_text()))


def test_every_message_has_an_entry() -> None:
    missing = messages.unexplained(messages.all_messages(), ROWS)
    assert not missing, f"add rows to docs/errors.md (python -m tools.docs.messages): {missing}"


def test_the_classes_of_the_library_have_a_heading_each() -> None:
    page = messages.PAGE.read_text()
    for kind in ("PeerFailedError", "SampleError", "StateError", "CoverageError", "UserError"):
        assert f"## `{kind}`" in page
    assert "## `WorkerDiedError`" in page


def test_an_error_without_an_entry_is_found(tmp_path: Path, monkeypatch: object) -> None:
    source = messages.ROOT / "odb_nodes" / "errors.py"
    assert not list(messages.messages_of(source))
    new = messages.Message("StateError", "the moon is in ...", "somewhere:1")
    general = messages.Message("ValueError", "window must be round, got ...", "somewhere:2")
    assert messages.unexplained([new, general], ROWS) == [new]
