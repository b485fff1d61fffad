"""One file for each recipe: a list of steps, and the links between them."""
