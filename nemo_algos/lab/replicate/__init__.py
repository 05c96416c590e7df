"""The papers' tables and figures: what each needs, made again, and made as a toy."""
