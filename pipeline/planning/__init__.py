"""Which node gets which layers. Pure: measurements go in, a plan with its predictions comes out."""
