"""The golden numbers that an independent program made, and this code against them."""
