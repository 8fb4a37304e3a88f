"""Many cases of one property in one test."""

import contextlib
import functools
import inspect

import pytest

ParameterSet = type(pytest.param())


def each_case(names, cases, ids=None):
    """Call a test on every case, as `pytest.mark.parametrize` does, but as one test that names all failed cases.

    Each case has a `tmp_path`, a `monkeypatch` and a `capsys` of its own; the cases share all other fixtures.
    """
    names = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    rows = []
    for number, case in enumerate(cases):
        label, values = None, tuple(case) if len(names) > 1 else (case,)
        if isinstance(case, ParameterSet):
            assert not case.marks, "a case has no marks of its own"
            label, values = case.id, case.values
        if ids is not None:
            label = "-".join(str(ids(value)) for value in values) if callable(ids) else ids[number]
        rows.append((label or f"{number}: {values!r:.200}", dict(zip(names, values, strict=True))))
    assert rows, "a test needs cases"

    def decorate(test):
        @functools.wraps(test)
        def call_each(*args, **fixtures):
            failed = {}
            for number, (label, values) in enumerate(rows):
                try:
                    with own_fixtures(fixtures, number) as own:
                        test(*args, **own, **values)
                except pytest.skip.Exception as skipped:
                    raise AssertionError(f"a case cannot be skipped alone: {label}") from skipped
                except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - raised below
                    error.add_note(f"in the case {label}")
                    failed[label] = error
            if failed:
                message = f"{len(failed)} of {len(rows)} cases failed: {', '.join(failed)}"
                raise BaseExceptionGroup(message, list(failed.values()))

        signature = inspect.signature(test)
        fixtures = [parameter for name, parameter in signature.parameters.items() if name not in names]
        call_each.__signature__ = signature.replace(parameters=fixtures)
        return call_each

    return decorate


@contextlib.contextmanager
def own_fixtures(fixtures, number):
    """Give a case its own folder, patches and output."""
    own = dict(fixtures)
    with contextlib.ExitStack() as stack:
        if "tmp_path" in own:
            own["tmp_path"] /= f"case-{number}"
            own["tmp_path"].mkdir()
        if "monkeypatch" in own:
            own["monkeypatch"] = stack.enter_context(pytest.MonkeyPatch.context())
        if "capsys" in own:
            own["capsys"].readouterr()
        yield own
