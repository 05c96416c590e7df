"""Where problems come from: files, data sets, countdown, a task of one's own; prompts. No torch."""
