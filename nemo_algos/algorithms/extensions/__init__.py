"""What a method may have beside it: terms of the loss, the correction, the choice of pi_old."""
