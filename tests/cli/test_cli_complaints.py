"""What decoders find wrong is told in the words of whoever wrote it."""

import pytest

from millrace import config
from millrace.client.creating import choose
from millrace.errors import BadConfiguration, UsageError

NODE = b'[node]\nid = 1\ndata = "d"\nlisten = "127.0.0.1:1"\n'


@pytest.mark.parametrize(
    ("write_path", "option", "value", "words"),
    [
        ("commit", "nodeset_size", 3, "a commit log cannot have nodeset_size; it can be given str"),
        ("sequenced", "streams", 2, "a sequenced log cannot have streams; it can be given nodeset"),
        ("chain", "streams", 2, "a chain log cannot have streams: make it a commit one"),
        ("chain", "extras", 1, "a chain log cannot have extras: make it a sequenced one"),
        ("sequenced", "extras", "many", "extras='many': expected int, got str"),
        ("sequenced", "local_scd", "shelf", "local_scd='shelf': invalid enum value 'shelf'"),
    ],
)
def test_options_of_logs(write_path: str, option: str, value: object, words: str) -> None:
    with pytest.raises(UsageError, match=words.replace("|", "\\|")):
        choose("log", 3, write_path, "disk", True, None, None, {option: value})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (NODE + b"[store]\nroom = 1\n", "node.toml: there is no setting store.room; see docs/"),
        (NODE + b"[shop]\nroom = 1\n", "node.toml: there is no setting shop; see docs/"),
        (b'[node]\nid = "x"\n', "node.toml: node.id: expected int, got str; see docs/"),
        (b"[node]\n", "node.toml: the setting node.id is missing; see docs/"),
        (b"[node", "node.toml: "),
    ],
)
def test_configurations(text: bytes, words: str) -> None:
    with pytest.raises(BadConfiguration, match=words) as raised:
        config.parse(text, "node.toml")
    assert "Object" not in str(raised.value)
