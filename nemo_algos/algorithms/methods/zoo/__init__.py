"""Published methods beside those studied here, a file for each family."""
