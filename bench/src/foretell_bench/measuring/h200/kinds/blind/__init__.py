"""Other designs of the same kinds: they judge models, and no model and no choice is made with them."""
