.PHONY: check test test-peers

check:  ## lint, format, types
	uv run ruff check
	uv run ruff format --check
	uv run pyright

test:
	uv run pytest
