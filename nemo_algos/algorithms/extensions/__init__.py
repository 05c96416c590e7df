"""A method put together (`build`, `Algorithm`), the terms beside it, and the loss."""
