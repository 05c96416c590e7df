"""The numbers of an evaluation: `result.measure`, and what can be chosen: `settings.Measure`."""
