"""What `import millrace` offers."""

import millrace


def test_names_that_are_imported_on_first_use_are_listed_and_found() -> None:
    assert set(millrace.__all__) <= set(dir(millrace))
    for name in millrace.__all__:
        assert getattr(millrace, name) is not None
