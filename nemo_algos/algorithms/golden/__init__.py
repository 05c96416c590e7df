"""Cases of every method in every trap, for any framework to state that it conforms."""
