"""``form`` in a test of a contract class runs over the forms of that class."""


def pytest_generate_tests(metafunc):
    if metafunc.cls is not None and "form" in metafunc.fixturenames:
        metafunc.parametrize("form", metafunc.cls.forms)
