def pytest_configure(config):
    config.addinivalue_line("markers", "long: what `make test-trl` runs, and test-peers does not")
