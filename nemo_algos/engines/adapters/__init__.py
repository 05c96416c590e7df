"""The methods inside the trainers of others, through the library's public names alone."""
