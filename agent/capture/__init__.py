"""Recording what a running model does: the tail's hidden states, and the tokens sampled from them."""
