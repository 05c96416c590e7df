"""Published methods beside those studied here, a file each."""
